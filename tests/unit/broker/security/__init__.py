"""Unit tests of broker/security."""
