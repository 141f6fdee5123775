"""Simulator of group and transaction coordinators: each prefix of their records is loaded by a new coordinator."""
