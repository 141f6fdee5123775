"""Floor 3: the same state on several brokers; partitions, metadata image, controller."""
