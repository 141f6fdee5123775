"""Worker threads, group commit and the compaction process."""
