"""The jobs' use of Kafka: batch lookups, the Spark source, an exactly-once sender."""
