"""Simulator of a transactional producer whose broker is killed between any two file operations."""
