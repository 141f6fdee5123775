"""Unit tests of broker/coordinators/delivery."""
