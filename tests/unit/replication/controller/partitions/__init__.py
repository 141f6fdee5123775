"""Unit tests of replication/controller/partitions."""
