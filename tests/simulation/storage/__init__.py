"""Simulator of the storage engine on a disk that loses power."""
