"""Scenarios: commands and their expected transcripts."""
