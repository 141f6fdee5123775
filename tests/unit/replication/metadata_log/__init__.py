"""Unit tests of replication/metadata_log."""
