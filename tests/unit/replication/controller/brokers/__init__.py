"""Unit tests of replication/controller/brokers."""
