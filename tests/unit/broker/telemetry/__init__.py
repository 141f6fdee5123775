"""Unit tests of broker/telemetry."""
