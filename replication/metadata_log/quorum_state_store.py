"""What a replica of the metadata log must not forget of elections: the file quorum-state beside the log.

FORMAT   __cluster_metadata-0/quorum-state
                               one line of JSON: the newest leader epoch, its leader, and whom this replica voted for in it;
                               in a static quorum (kraft.version 0) also the voters, and no directory of whom it voted for
RULES    1. It is durable before anything that rests on it leaves this node.
NOT HERE What is in it (`raft/raft.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from replication.metadata_log.formatting import UnusableDirectory
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey
from storage.io.disk import Disk

QUORUM_STATE: Final = "quorum-state"

_NOBODY: Final = -1


def read_quorum_state(disk: Disk, metadata_path: str) -> ElectionState | None:
    """What quorum-state says; None before the first start.

    Raises:
        UnusableDirectory: the file is broken.
    """
    path = f"{metadata_path}/{QUORUM_STATE}"
    if not disk.exists(path):
        return None
    try:
        state = json.loads(disk.read(path))
        voted_id = int(state.get("votedId", _NOBODY))
        directory = state.get("votedDirectoryId")
        voted = ReplicaKey(voted_id, ZERO_UUID if directory is None else uuid_from_text(directory))
        return ElectionState(int(state["leaderEpoch"]), int(state["leaderId"]), None if voted_id < 0 else voted)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnusableDirectory(f"{path} is not whole. Remove it: the leader epoch is found in the log too.") from None


def write_quorum_state(
    disk: Disk, metadata_path: str, state: ElectionState, *, static_voters: Sequence[int] | None = None
) -> None:
    """Make it durable; `static_voters` where the voters are a setting."""
    voted = state.voted or ReplicaKey(_NOBODY)
    known: dict[str, Any] = {"leaderId": state.leader_id, "leaderEpoch": state.epoch, "votedId": voted.node_id}
    if static_voters is not None:
        voters = [{"voterId": voter_id} for voter_id in static_voters]
        known = {"clusterId": "", **known, "appliedOffset": 0, "currentVoters": voters, "data_version": 0}
    else:
        known = {**known, "votedDirectoryId": uuid_text(voted.directory_id), "data_version": 1}
    disk.replace_atomically(f"{metadata_path}/{QUORUM_STATE}", json.dumps(known, separators=(",", ":")).encode())
