"""Replicas: partitions, the metadata log and its Raft quorum, the controller; no sockets, no threads, no clocks."""
