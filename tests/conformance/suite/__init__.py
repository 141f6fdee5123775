"""The conformance suite: one set of scenarios as tables, run by real clients in several languages."""
