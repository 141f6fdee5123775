"""Unit tests of broker/tools."""
