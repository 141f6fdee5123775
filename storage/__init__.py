"""Storage of record batches on disk."""
