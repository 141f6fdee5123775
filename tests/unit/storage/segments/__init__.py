"""Unit tests of storage/segments."""
