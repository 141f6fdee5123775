"""Raft as Apache Kafka speaks it: who leads the metadata log, and up to where it is committed (KIP-595, 853, 996)."""
