"""Layer 1: Kafka's wire protocol and record format, without I/O."""
