"""The scenarios, one table per subject."""
