"""The metadata image and its records."""
