"""Simulator of commit logs on a disk that loses power."""
