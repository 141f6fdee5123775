"""Layer 3, replicas: partitions, the metadata log and its Raft quorum, the controller; no sockets, no threads, no clocks."""
