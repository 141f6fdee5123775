"""Unit tests of broker/coordinators."""
