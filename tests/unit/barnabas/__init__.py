"""Tests of the face."""
