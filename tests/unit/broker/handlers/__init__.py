"""Unit tests of broker/handlers."""
