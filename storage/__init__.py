"""Floor 2: batches on disk."""
