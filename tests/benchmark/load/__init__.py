"""Loads on brokers, and their measurement."""
