"""The quorum-state file."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.primitives import uuid_text
from replication.metadata_log.node_identity import UnusableDirectory
from replication.metadata_log.quorum_state_store import read_quorum_state, write_quorum_state
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey
from storage.io.disk import Disk

DIRECTORY = b"\x07" * 16


def test_the_format_is_apache_kafka_s_with_dynamic_and_static_voters(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert read_quorum_state(Disk(), path) is None
    write_quorum_state(Disk(), path, ElectionState(3, 1))
    assert (tmp_path / "quorum-state").read_text() == (
        '{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    assert read_quorum_state(Disk(), path) == ElectionState(3, 1)
    write_quorum_state(Disk(), path, ElectionState(4, 7), static_voters=[7, 8])
    assert (tmp_path / "quorum-state").read_text() == (
        '{"clusterId":"","leaderId":7,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":7},{"voterId":8}],"data_version":0}'
    )


def test_a_vote_is_stored_with_node_and_directory(tmp_path: Path) -> None:
    state = ElectionState(5, -1, ReplicaKey(2, DIRECTORY))
    write_quorum_state(Disk(), str(tmp_path), state)
    assert read_quorum_state(Disk(), str(tmp_path)) == state
    assert f'"votedId":2,"votedDirectoryId":"{uuid_text(DIRECTORY)}"' in (tmp_path / "quorum-state").read_text()


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "quorum-state").write_text('{"leaderId":1,')
    with pytest.raises(UnusableDirectory, match="quorum-state is incomplete"):
        read_quorum_state(Disk(), str(tmp_path))
