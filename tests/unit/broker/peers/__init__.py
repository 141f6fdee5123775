"""Unit tests of broker/peers."""
