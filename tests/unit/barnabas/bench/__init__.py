"""Unit tests of the figures of bench."""
