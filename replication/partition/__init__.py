"""Replicas of partitions: the replica manager, leaders, followers, moves between log directories."""
