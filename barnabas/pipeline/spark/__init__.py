"""Spark itself: jars, Python files for workers, rows, value decoding."""
