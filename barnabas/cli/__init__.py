"""The verbs that work with any Kafka cluster."""
