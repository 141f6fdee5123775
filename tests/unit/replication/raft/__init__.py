"""Unit tests of replication/raft."""
