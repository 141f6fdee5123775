"""Clusters of real nodes to which everything happens while clients work: `make cluster-faults`, docs/cluster-faults.md."""
