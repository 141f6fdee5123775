"""Barnabas: a Kafka-protocol broker; the face that a user's environment imports."""
