"""Unit tests of the requests of operators."""
