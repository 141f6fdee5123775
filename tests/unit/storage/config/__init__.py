"""Unit tests of storage/config."""
