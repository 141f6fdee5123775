"""Floor 1: bytes and values of Kafka's wire protocol and record format, without I/O."""
