"""Quotas of clients and of connections: what was used, and how long a client must wait."""
