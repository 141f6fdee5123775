"""Other implementations of the protocol, to compare ours with."""
