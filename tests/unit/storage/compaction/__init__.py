"""Tests of storage/compaction."""
