"""Sockets: listening, reading frames, sending parts."""
