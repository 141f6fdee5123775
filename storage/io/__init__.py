"""File system access: files, syncs, page cache, open file limit."""
