"""Spark jobs around a broker, spoken to only through Kafka's protocol."""
