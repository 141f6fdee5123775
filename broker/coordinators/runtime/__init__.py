"""The coordinator runtime: shards, loading and writing of their partitions."""
