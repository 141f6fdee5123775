"""Clients' own metrics (KIP-714): who sends them, what is kept, where it is shown."""
