"""Unit tests of barnabas/pipeline/spark."""
