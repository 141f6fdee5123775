"""What Spark's own Kafka source and sink do, played against Barnabas and against Apache Kafka: the answers must be the same."""
