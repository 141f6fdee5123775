"""KRaft: leader election and replication of the metadata log (KIP-595, KIP-853, KIP-996)."""
