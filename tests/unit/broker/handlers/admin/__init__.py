"""Unit tests of broker/handlers/admin."""
