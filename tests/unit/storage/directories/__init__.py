"""Unit tests of storage/directories."""
