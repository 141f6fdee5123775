"""Unit tests of storage/inspection."""
