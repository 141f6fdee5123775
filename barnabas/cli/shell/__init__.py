"""Completion scripts and man pages, made from the click commands of all verbs."""
