"""Exactly-once semantics end to end: clients and brokers are killed repeatedly, and the clients' histories are checked."""
