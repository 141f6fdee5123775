"""replication/raft/: what is refused, what is counted, what is remembered."""
