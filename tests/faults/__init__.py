"""Faults injected into clusters of real nodes while clients work: `make cluster-faults`, docs/cluster-faults.md."""
