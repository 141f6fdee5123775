"""Inspection of log files without opening the log, for tools and for directories that are not in service."""
