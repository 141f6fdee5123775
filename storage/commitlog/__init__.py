"""The commit log: one sequential log for all partitions of a log directory."""
