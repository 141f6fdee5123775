"""Sockets: accepts connections, reads frames, sends responses."""
