"""Unit tests of broker/coordinators/transactions."""
