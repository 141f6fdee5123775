"""Layer 2: storage of record batches on disk."""
