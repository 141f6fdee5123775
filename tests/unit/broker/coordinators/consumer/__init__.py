"""Unit tests of broker/coordinators/consumer."""
