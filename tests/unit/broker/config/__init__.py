"""Unit tests of broker/config."""
