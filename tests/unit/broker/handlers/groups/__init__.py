"""Unit tests of broker/handlers/groups."""
