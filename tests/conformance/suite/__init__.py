"""The conformance suite: one set of scenarios in tables, run by client libraries in several languages."""
