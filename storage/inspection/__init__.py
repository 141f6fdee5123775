"""Looking at the files of a log without opening the log: for tools, and for directories that nobody serves."""
