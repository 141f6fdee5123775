"""Measures any Kafka cluster: produce, consume, end-to-end latency."""
