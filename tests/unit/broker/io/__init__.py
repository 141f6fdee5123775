"""Unit tests of broker/io."""
