"""Definitions of configurations and the configuration of a log."""
