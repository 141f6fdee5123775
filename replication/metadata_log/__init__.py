"""The metadata log on disk: opening, replay, snapshots, and this replica of the quorum."""
