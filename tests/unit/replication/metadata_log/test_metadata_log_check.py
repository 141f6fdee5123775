"""Startup after a possible loss of metadata records (replication/metadata_log/metadata_log_check.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.messages import stored_records
from replication.metadata.metadata_records import SnapshotName, UnreadableMetadata
from replication.metadata_log.control_state import to_record, voter_records
from replication.metadata_log.metadata_log_check import check_for_loss
from replication.metadata_log.metadata_replay import read_metadata
from replication.metadata_log.quorum_state_store import write_quorum_state
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.checkpoint_file import PARTITION_METADATA, write_topic_id
from tests.support.controller_harness import WALL_MS, ControllerHarness
from tests.support.metadata_histories import METADATA_VERSION, batch, snapshot_of, topic_record


def start_behind_the_election(harness: ControllerHarness, created_ms: int) -> None:
    """Check a snapshot without topics in epoch 1; in epoch 2, the node has a partition's directory of this age."""
    log = Path(harness.directory, METADATA_DIRECTORY)
    voters = to_record(VoterSet([Voter(ReplicaKey(1, harness.identity.metadata_directory_id))]))
    (log / str(SnapshotName(9, 1))).write_bytes(snapshot_of(METADATA_VERSION, epoch=1, control=voter_records(voters)))
    write_quorum_state(harness.disk, str(log), ElectionState(epoch=2, leader_id=3))
    partition = Path(harness.directory, "t-0", PARTITION_METADATA)
    partition.parent.mkdir()
    write_topic_id(harness.disk, str(partition), b"T" * 16, sync=False)
    os.utime(partition, (created_ms / 1000, created_ms / 1000))
    check_for_loss(harness.disk, harness.identity, read_metadata(harness.disk, harness.identity))


def test_a_topic_that_a_snapshot_removed_is_not_lost(tmp_path: Path) -> None:
    """The node was killed before it renamed the topic's directories; since then another leader was elected."""
    start_behind_the_election(ControllerHarness(tmp_path), WALL_MS - 1)


def test_a_topic_that_was_created_after_the_snapshot_is_lost(tmp_path: Path) -> None:
    with pytest.raises(UnreadableMetadata, match=r"has lost its end: it does not know the topics of .*/t-0\."):
        start_behind_the_election(ControllerHarness(tmp_path), WALL_MS + 1)


def test_a_removed_topic_is_not_lost_although_a_loss_of_power_took_its_id(tmp_path: Path) -> None:
    """Its directory was durable before partition.metadata, and its removal was not."""
    harness = ControllerHarness(tmp_path)
    removal = stored_records.RemoveTopicRecord(topic_id=topic_record("t").topic_id)
    harness.log_path.write_bytes(batch(METADATA_VERSION, topic_record("t"), removal))
    write_quorum_state(harness.disk, str(harness.log_path.parent), ElectionState(epoch=2, leader_id=3))
    Path(harness.directory, "t-0").mkdir()
    check_for_loss(harness.disk, harness.identity, read_metadata(harness.disk, harness.identity))
    Path(harness.directory, "u-0").mkdir()
    with pytest.raises(UnreadableMetadata, match=r"does not know the topics of .*/u-0\."):
        check_for_loss(harness.disk, harness.identity, read_metadata(harness.disk, harness.identity))
