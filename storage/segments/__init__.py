"""Kafka's storage layout: one directory per partition, with segment files."""
