"""The segments engine: Kafka's own layout, one directory per partition."""
