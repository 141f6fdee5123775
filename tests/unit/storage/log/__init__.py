"""Unit tests of storage/log."""
