"""Simulator of whole clusters: the parts of the daemon on simulated machines."""
