"""Tests of storage/keyindex."""
