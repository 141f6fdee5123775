"""Runs Spark's Kafka source and sink against Barnabas and Apache Kafka and compares the results."""
