"""Unit tests of replication/controller."""
