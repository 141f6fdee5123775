"""Metrics of this node: their sources, the exposition for Prometheus, and the probes."""
