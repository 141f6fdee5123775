"""Schemas of messages that kafka-python does not have, in the form of Apache Kafka's message definitions."""
