"""Tests of the package that users import."""
