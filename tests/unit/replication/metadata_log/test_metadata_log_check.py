"""Startup after a possible loss of metadata records (replication/metadata_log/metadata_log_check.py)."""

from __future__ import annotations

import os
from contextlib import nullcontext
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
from storage.commitlog.commit_log import DIRECTORY, CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.checkpoint_file import PARTITION_METADATA, write_topic_id
from tests.support.controller_harness import WALL_MS, ControllerHarness
from tests.support.logs import SMALL_FILE_BYTES
from tests.support.metadata_histories import METADATA_VERSION, batch, snapshot_of, topic_record
from tests.support.segments import append
from tests.support.segments import batch as segment_batch


def start_behind_the_election(harness: ControllerHarness, created_ms: int, *, in_commit_log: bool = False) -> None:
    """Check a snapshot without topics in epoch 1; in epoch 2, the node has a partition of this age."""
    log = Path(harness.directory, METADATA_DIRECTORY)
    voters = to_record(VoterSet([Voter(ReplicaKey(1, harness.identity.metadata_directory_id))]))
    (log / str(SnapshotName(9, 1))).write_bytes(snapshot_of(METADATA_VERSION, epoch=1, control=voter_records(voters)))
    write_quorum_state(harness.disk, str(log), ElectionState(epoch=2, leader_id=3))
    if in_commit_log:
        partition = killed_commit_log(harness)
    else:
        partition = Path(harness.directory, "t-0", PARTITION_METADATA)
        partition.parent.mkdir()
        write_topic_id(harness.disk, str(partition), b"T" * 16, sync=False)
    os.utime(partition, (created_ms / 1000, created_ms / 1000))
    if in_commit_log:
        open_commit_log(harness).open()  # an earlier start, which was killed too
    check_for_loss(harness.disk, harness.identity, read_metadata(harness.disk, harness.identity))


def open_commit_log(harness: ControllerHarness) -> CommitLog:
    return CommitLog(
        harness.disk, harness.directory, random_bytes=os.urandom, new_lock=nullcontext, file_bytes=SMALL_FILE_BYTES
    )


def killed_commit_log(harness: ControllerHarness) -> Path:
    """Write a record of t-0 to a commit log that is not closed; returns its file."""
    engine = CommitLogEngine(open_commit_log(harness), SlotId(b"T" * 16, 0), "t", LogConfig())
    engine.open(None)
    append(engine, segment_batch(0))
    return next(path for path in sorted(Path(harness.directory, DIRECTORY).glob("*.clog")))


@pytest.mark.parametrize("in_commit_log", [False, True])
def test_a_topic_that_a_snapshot_removed_is_not_lost(tmp_path: Path, in_commit_log: bool) -> None:
    """The node was killed before it deleted the topic's partitions; since then another leader was elected."""
    start_behind_the_election(ControllerHarness(tmp_path), WALL_MS - 1, in_commit_log=in_commit_log)


@pytest.mark.parametrize(("in_commit_log", "named"), [(False, r"/t-0"), (True, r"/commitlog \(t-0\)")])
def test_a_topic_that_was_created_after_the_snapshot_is_lost(tmp_path: Path, in_commit_log: bool, named: str) -> None:
    """The message names the directory that can be moved away."""
    with pytest.raises(UnreadableMetadata, match=rf"has lost its end: it does not know the topics of .*{named}\. "):
        start_behind_the_election(ControllerHarness(tmp_path), WALL_MS + 1, in_commit_log=in_commit_log)


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


def test_a_marker_beside_a_metadata_log_that_is_in_no_log_directory_says_nothing(tmp_path: Path) -> None:
    """No shutdown writes it there; an incomplete end is that of a kill."""
    harness = ControllerHarness(tmp_path)
    harness.log_path.write_bytes(batch(METADATA_VERSION, topic_record("t")) + bytes(8))
    Path(harness.directory, CLEAN_SHUTDOWN).touch()
    found = read_metadata(harness.disk, harness.identity)
    with pytest.raises(UnreadableMetadata, match="after a clean shutdown"):
        check_for_loss(harness.disk, harness.identity, found)
    check_for_loss(harness.disk, harness.identity._replace(directory_ids={}), found)


def test_an_empty_log_has_lost_the_topics_of_a_single_node(tmp_path: Path) -> None:
    """The node would begin a new log from bootstrap.checkpoint. With other controllers it copies their log instead."""
    harness = ControllerHarness(tmp_path)
    found = read_metadata(harness.disk, harness.identity)
    check_for_loss(harness.disk, harness.identity, found, is_only_controller=True)
    Path(harness.directory, "t-0").mkdir()
    check_for_loss(harness.disk, harness.identity, found)
    with pytest.raises(UnreadableMetadata, match=r"is empty: it does not know the topics of .*/t-0\."):
        check_for_loss(harness.disk, harness.identity, found, is_only_controller=True)
