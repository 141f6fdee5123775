"""Unit tests of broker/quotas."""
