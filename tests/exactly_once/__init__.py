"""Exactly once, end to end: clients and brokers that are killed again and again, and what their histories tell."""
