"""Other implementations of the protocol, as references for tests."""
