"""Unit tests of the verbs."""
