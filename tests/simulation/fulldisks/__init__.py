"""Simulation of storage on disks that are full for a while."""
