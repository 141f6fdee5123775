"""Controller decisions about topics and partitions: placement, elections, ISR, reassignment."""
