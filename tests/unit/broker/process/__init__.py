"""Unit tests of broker/process."""
