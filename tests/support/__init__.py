"""What tests share: real Apache Kafka as an oracle, clients, small servers. Nothing in here is a test."""
