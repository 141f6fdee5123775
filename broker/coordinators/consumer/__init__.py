"""Groups of the consumer protocol (KIP-848) and members that change between protocols."""
