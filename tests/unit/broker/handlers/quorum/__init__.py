"""Unit tests of broker/handlers/quorum."""
