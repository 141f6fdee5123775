"""The durable election state of a replica: the file quorum-state beside the metadata log.

FORMAT   __cluster_metadata-0/quorum-state
                               one line of JSON: the newest leader epoch, its leader, and this replica's vote in it;
                               with static voters (kraft.version 0) also the voters, without the directory id of the vote
RULES    1. It is durable before any message that depends on it is sent.
NOT HERE What the state means (`raft/raft.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from replication.metadata_log.node_identity import UnusableDirectory
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey
from storage.io.disk import Disk

QUORUM_STATE: Final = "quorum-state"

_NO_VOTE: Final = -1


def read_quorum_state(disk: Disk, metadata_path: str) -> ElectionState | None:
    """The stored election state; None before the first start.

    Raises:
        UnusableDirectory: the file is malformed.
    """
    path = f"{metadata_path}/{QUORUM_STATE}"
    if not disk.exists(path):
        return None
    try:
        state = json.loads(disk.read(path))
        voted_id = int(state.get("votedId", _NO_VOTE))
        directory = state.get("votedDirectoryId")
        voted_key = ReplicaKey(voted_id, ZERO_UUID if directory is None else uuid_from_text(directory))
        return ElectionState(int(state["leaderEpoch"]), int(state["leaderId"]), None if voted_id < 0 else voted_key)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnusableDirectory(f"{path} is incomplete. Remove it: the log contains the leader epoch too.") from None


def write_quorum_state(
    disk: Disk, metadata_path: str, state: ElectionState, *, static_voters: Sequence[int] | None = None
) -> None:
    """Write and sync the file; `static_voters` are the configured voters, if kraft.version is 0."""
    voted_key = state.voted_key or ReplicaKey(_NO_VOTE)
    known: dict[str, Any] = {"leaderId": state.leader_id, "leaderEpoch": state.epoch, "votedId": voted_key.node_id}
    if static_voters is not None:
        voters = [{"voterId": voter_id} for voter_id in static_voters]
        known = {"clusterId": "", **known, "appliedOffset": 0, "currentVoters": voters, "data_version": 0}
    else:
        known = {**known, "votedDirectoryId": uuid_text(voted_key.directory_id), "data_version": 1}
    disk.replace_atomically(f"{metadata_path}/{QUORUM_STATE}", json.dumps(known, separators=(",", ":")).encode())
