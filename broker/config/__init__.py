"""Configurations of the broker and its listeners."""
