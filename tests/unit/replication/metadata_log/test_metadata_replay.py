"""Reading the metadata log: refused directories, and those of older and newer releases."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from protocol.control_records import ControlType
from protocol.messages import stored_records
from protocol.messages.common import KRaftVersionFeature
from replication.metadata.metadata_records import ZERO_SNAPSHOT, SnapshotName, UnreadableMetadata
from replication.metadata_log.control_state import voter_records
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import read_metadata
from replication.metadata_log.node_identity import BOOTSTRAP_CHECKPOINT
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from storage.directories.partition_directory import METADATA_DIRECTORY
from tests.support.controller_harness import ControllerHarness
from tests.support.metadata_histories import (
    METADATA_VERSION,
    batch,
    control_batch,
    feature_level,
    snapshot_of,
    topic_record,
)


def elected_by(*voters: int) -> bytearray:
    """A log that begins with a leader's election by these voters."""
    named = [stored_records.LeaderChangeVoter(voter_id=voter) for voter in voters]
    change = stored_records.LeaderChangeMessage(leader_id=voters[0], voters=named, granting_voters=named)
    return control_batch((ControlType.LEADER_CHANGE, change))


def voter(node_id: int) -> stored_records.VotersVoter:
    feature = KRaftVersionFeature(min_supported_version=0, max_supported_version=1)
    return stored_records.VotersVoter(
        voter_id=node_id, voter_directory_id=bytes([node_id]) * 16, endpoints=[], kraft_version_feature=feature
    )


def all_files(directory: Path) -> dict[str, str]:
    """The hash of every file."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def local_voters(harness: ControllerHarness) -> stored_records.VotersRecord:
    """This node as the only voter."""
    local = voter(1)
    local.voter_directory_id = harness.identity.metadata_directory_id
    return stored_records.VotersRecord(voters=[local])


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path)


TWO_VOTERS = stored_records.VotersRecord(voters=[voter(1), voter(2)])


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (batch(feature_level(34)), "has metadata.version 34; this broker works with 7 to 33"),
        (batch(feature_level(6)), "has metadata.version 6; this broker works with 7 to 33"),
        (batch(topic_record("a")), "has metadata.version 35; this broker works with 7 to 33"),
        (
            batch(METADATA_VERSION, feature_level(3, "share.version")),
            "has share.version 3; this broker works with 0 to 2",
        ),
        (
            batch(METADATA_VERSION, feature_level(1, "quantum.version")),
            "has quantum.version 1; this broker does not know",
        ),
        (
            control_batch((ControlType.KRAFT_VERSION, stored_records.KRaftVersionRecord(kraft_version=2))),
            "The metadata quorum has kraft.version 2; this broker works with 0 to 1",
        ),
    ],
)
def test_unknown_feature_levels_are_refused_without_a_change(
    tmp_path: Path, harness: ControllerHarness, log: bytes, message: str
) -> None:
    harness.log_path.write_bytes(bytes(log) + b"torn")
    (tmp_path / BOOTSTRAP_CHECKPOINT).write_bytes(snapshot_of(feature_level(35)))  # for a log without levels
    before = all_files(tmp_path)
    with pytest.raises(UnreadableMetadata, match=message):
        harness.open()
    assert all_files(tmp_path) == before


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (elected_by(1, 2, 3), r"several voters \(1, 2, 3\), which are a setting"),
        (elected_by(2), r"The metadata quorum is node 2, and this is node 1: name it in controller\.quorum\.voters"),
    ],
)
def test_a_static_quorum_with_other_voters_requires_a_config(
    tmp_path: Path, harness: ControllerHarness, log: bytes, message: str
) -> None:
    (tmp_path / METADATA_DIRECTORY / str(ZERO_SNAPSHOT)).unlink()
    harness.log_path.write_bytes(bytes(log) + b"torn")
    before = all_files(tmp_path)
    with pytest.raises(UnreadableMetadata, match=message):
        harness.open()
    assert all_files(tmp_path) == before


def test_a_broker_observes_the_only_configured_voter(tmp_path: Path, harness: ControllerHarness) -> None:
    (tmp_path / METADATA_DIRECTORY / str(ZERO_SNAPSHOT)).unlink()
    for records in (b"", elected_by(2)):
        harness.log_path.write_bytes(records)
        setting = VoterSet([Voter(ReplicaKey(2))])
        opened = open_metadata_log(
            harness.disk, harness.engine, harness.identity, harness.worker, static_voters=setting
        )
        assert opened.log.voters.latest.node_ids == [2]
        opened.log.close()


def test_configured_voters_apply_again_when_the_voters_record_is_truncated(
    tmp_path: Path, harness: ControllerHarness
) -> None:
    (tmp_path / METADATA_DIRECTORY / str(ZERO_SNAPSHOT)).unlink()
    rise = control_batch(*voter_records(TWO_VOTERS), offset=2)
    harness.log_path.write_bytes(elected_by(1, 2, 3) + batch(METADATA_VERSION, offset=1) + rise)
    setting = VoterSet(Voter(ReplicaKey(node_id)) for node_id in (1, 2, 3))
    log = open_metadata_log(harness.disk, harness.engine, harness.identity, harness.worker, static_voters=setting).log
    assert (log.kraft_version.latest, log.voters.latest.node_ids) == (1, [1, 2])
    log.truncate(2)
    assert (log.kraft_version.latest, log.voters.latest) == (0, setting)


def test_a_removed_unknown_feature_level_is_accepted(harness: ControllerHarness) -> None:
    levels = (feature_level(level, "quantum.version") for level in (1, 0))
    harness.log_path.write_bytes(batch(METADATA_VERSION, *levels))
    assert harness.open().image.features == {"metadata.version": 30}


def test_the_present_voters_count_and_not_the_former_ones(harness: ControllerHarness) -> None:
    removal = control_batch((ControlType.KRAFT_VOTERS, local_voters(harness)), offset=1)
    harness.log_path.write_bytes(elected_by(1, 2) + removal + batch(METADATA_VERSION, offset=2))
    assert harness.open().log.voters.latest.node_ids == [1]


def test_the_first_records_are_taken_from_the_zero_checkpoint(tmp_path: Path, harness: ControllerHarness) -> None:
    """As Kafka 4.4 formats, without bootstrap.checkpoint."""
    (tmp_path / BOOTSTRAP_CHECKPOINT).unlink()
    credential = stored_records.UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
    )
    voters = voter_records(local_voters(harness))
    first = snapshot_of(feature_level(33), feature_level(2, "share.version"), credential, control=voters)
    (tmp_path / METADATA_DIRECTORY / str(ZERO_SNAPSHOT)).write_bytes(first)
    harness.start()
    features = {"metadata.version": 33, "share.version": 2}
    assert harness.image.features == features
    written = [m for b in harness.batches() for m in b.messages]
    assert [message for message in written if isinstance(message, type(credential))] == [credential]
    registered = harness.image.brokers[1].features
    assert (registered["metadata.version"], registered["share.version"]) == ((7, 33), (0, 2))
    again = harness.restart()
    assert again.image.features == features
    assert list(again.image.opaque_records.values()) == [credential]


def test_without_log_and_bootstrap_records_the_directory_is_refused(tmp_path: Path, harness: ControllerHarness) -> None:
    (tmp_path / BOOTSTRAP_CHECKPOINT).unlink()
    with pytest.raises(UnreadableMetadata, match=r"no bootstrap\.checkpoint to start with"):
        harness.open()


@pytest.mark.parametrize("number", [7, 8, 12, 13, 14, 15, 16, 17, 22, 23, 29, 30, 31, 32, 33])
def test_a_cluster_at_any_metadata_version_starts_and_restarts(
    tmp_path: Path, harness: ControllerHarness, number: int
) -> None:
    (tmp_path / BOOTSTRAP_CHECKPOINT).write_bytes(snapshot_of(feature_level(number)))
    harness.start()
    again = harness.restart()
    assert again.image.metadata_version == number
    kinds = {type(message) for batch in again.batches() for message in batch.messages}
    assert (stored_records.BeginTransactionRecord in kinds) is (number >= 13)
    assert (stored_records.RegisterControllerRecord in kinds) is (number >= 15)
    assert bool(again.image.brokers[1].directories) is (number >= 17)


def test_a_static_quorum_stores_its_voters_only_in_quorum_state(tmp_path: Path, harness: ControllerHarness) -> None:
    (tmp_path / METADATA_DIRECTORY / str(ZERO_SNAPSHOT)).unlink()
    (tmp_path / METADATA_DIRECTORY).rmdir()
    harness.start()
    assert harness.log.kraft_version.latest == 0
    assert '"currentVoters":[{"voterId":1}],"data_version":0' in (harness.log_path.parent / "quorum-state").read_text()
    kinds = {type(message) for batch in harness.batches() for message in batch.messages}
    assert not kinds & {stored_records.KRaftVersionRecord, stored_records.VotersRecord}


def test_batches_before_the_snapshots_end_are_skipped(harness: ControllerHarness) -> None:
    harness.log_path.write_bytes(batch(METADATA_VERSION, topic_record("old")) + batch(topic_record("new"), offset=2))
    name = SnapshotName(2, 1)
    voters = voter_records(local_voters(harness))
    (harness.log_path.parent / str(name)).write_bytes(snapshot_of(METADATA_VERSION, control=voters))
    found = read_metadata(harness.disk, harness.identity)
    assert (list(found.image.topics_by_name), found.end_offset, found.start) == (["new"], 3, name)


def test_files_with_other_names_are_ignored(tmp_path: Path, harness: ControllerHarness) -> None:
    harness.log_path.write_bytes(batch(METADATA_VERSION))
    for name in ("1.log", "notes.log", "0000000000000000000x.log"):
        (tmp_path / METADATA_DIRECTORY / name).write_bytes(b"?")
    assert harness.open().image.features == {"metadata.version": 30}


def test_a_damaged_bootstrap_checkpoint_matters_only_for_a_new_cluster(
    tmp_path: Path, harness: ControllerHarness
) -> None:
    (tmp_path / BOOTSTRAP_CHECKPOINT).write_bytes(b"?" * 100)
    with pytest.raises(UnreadableMetadata, match="Restore the file from a copy"):
        harness.open()
    harness.log_path.write_bytes(batch(METADATA_VERSION))
    assert harness.open().image.features == {"metadata.version": 30}
