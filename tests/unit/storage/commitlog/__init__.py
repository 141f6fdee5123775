"""Unit tests of storage/commitlog."""
