"""Unit tests of barnabas/pipeline."""
