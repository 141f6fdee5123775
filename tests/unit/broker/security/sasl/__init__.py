"""Unit tests of broker/security/sasl."""
