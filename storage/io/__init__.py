"""Access to the file system: the disk, sync, page cache, file handles."""
