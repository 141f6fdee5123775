"""Unit tests of broker/coordinators/classic."""
