"""Unit tests of replication/partition."""
