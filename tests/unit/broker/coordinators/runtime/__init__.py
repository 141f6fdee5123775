"""Unit tests of broker/coordinators/runtime."""
