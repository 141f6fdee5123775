"""Handlers of transactions and producer ids."""
