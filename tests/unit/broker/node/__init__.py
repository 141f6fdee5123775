"""Unit tests of broker/node."""
