"""Unit tests of replication/partition: key indexes."""
