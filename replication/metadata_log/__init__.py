"""The metadata log on disk: opening, replay, snapshots, and this node's replica in the Raft quorum."""
