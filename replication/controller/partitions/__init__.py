"""Decisions about topics and partitions: placement, elections, ISR, reassignment."""
