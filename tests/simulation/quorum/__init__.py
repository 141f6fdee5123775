"""Simulator of a metadata quorum: Raft replicas with logs in memory."""
