"""Setting definitions and the configuration of a log."""
