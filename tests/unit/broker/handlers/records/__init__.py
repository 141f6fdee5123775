"""Unit tests of broker/handlers/records."""
