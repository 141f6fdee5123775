"""Unit tests of broker/handlers/transactions."""
