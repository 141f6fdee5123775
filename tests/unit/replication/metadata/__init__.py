"""Unit tests of replication/metadata."""
