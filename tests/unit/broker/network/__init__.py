"""Unit tests of broker/network."""
