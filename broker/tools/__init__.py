"""Offline tools: format, doctor, dump-log."""
