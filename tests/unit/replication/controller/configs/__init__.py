"""Unit tests of replication/controller/configs."""
