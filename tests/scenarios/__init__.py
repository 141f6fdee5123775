"""Scenarios: commands and the transcripts that they must give."""
