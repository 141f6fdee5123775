"""Deterministic simulators: each runs product code with simulated time, disks and networks, and checks invariants."""
