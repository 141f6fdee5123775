"""The key index of a partition: from a key or a header's value to offsets."""
