"""Measurements beside Apache Kafka: `make bench ARGS=help` lists them. They assert nothing."""
