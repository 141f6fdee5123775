"""Records as text, and text as records."""
