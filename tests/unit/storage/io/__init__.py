"""Unit tests of storage/io."""
