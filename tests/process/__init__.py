"""The daemon as a process: start, stop, crash, restart."""
