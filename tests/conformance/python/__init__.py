"""The Python clients' drivers of the conformance suite."""
