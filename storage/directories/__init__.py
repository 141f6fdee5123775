"""Log directories and the log manager."""
