"""protocol/record_values.py: type and version before a stored message."""

from __future__ import annotations

import pytest

from protocol import record_values as rv
from protocol.errors import MalformedRequest
from protocol.messages import stored
from protocol.messages.stored import FeatureLevelRecord, LeaderChangeMessage, LeaderChangeVoter

LEVEL = FeatureLevelRecord(name="metadata.version", feature_level=30)
LEVEL_BYTES = b"\x01\x0c\x00" + b"\x11metadata.version\x00\x1e\x00"  # as StorageTool of Kafka 4.3 writes it


def test_a_metadata_record_begins_with_frame_type_and_version() -> None:
    """FORMAT: three uvarints."""
    assert rv.encode_metadata_record(LEVEL, 0) == LEVEL_BYTES
    assert rv.decode_metadata_record(LEVEL_BYTES) == (LEVEL, 0)
    assert rv.decode_metadata_record(memoryview(LEVEL_BYTES)) == (LEVEL, 0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "runs past the end"),
        (b"\x01", "runs past the end"),
        (b"\x00" + LEVEL_BYTES[1:], "frame version 0"),
        (b"\x01\x63\x00", "type 99 is not known"),
        (b"\x01\x0c\x01" + LEVEL_BYTES[3:], "version 1 of FeatureLevelRecord is not known"),
        (LEVEL_BYTES[:-1], "cut short"),
        (LEVEL_BYTES + b"\x00", "1 bytes follow"),
    ],
)
def test_a_metadata_record_that_cannot_be_read_whole_is_malformed(value: bytes, why: str) -> None:
    """RULE 1."""
    with pytest.raises(MalformedRequest, match=why):
        rv.decode_metadata_record(value)


def test_every_type_of_metadata_record_comes_back() -> None:
    """Types are the schemas' keys."""
    assert len(rv.METADATA_RECORDS) == len({cls.API_KEY for cls in rv.METADATA_RECORDS.values()})
    record = stored.PartitionChangeRecord(partition_id=3, topic_id=bytes(16), isr=[1, 2], leader=2)
    for version in (0, 1, 2):
        assert rv.decode_metadata_record(rv.encode_metadata_record(record, version)) == (record, version)


def test_a_coordinator_record_has_its_type_in_the_key_and_its_version_in_the_value() -> None:
    """FORMAT: as Kafka writes an offset commit."""
    key = stored.OffsetCommitKey(group="g", topic="t", partition=3)
    value = stored.OffsetCommitValue(offset=7, metadata="", commit_timestamp=9)
    key_bytes, value_bytes = rv.encode_coordinator_key(key), rv.encode_coordinator_value(value, 3)
    assert key_bytes == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert value_bytes == b"\0\3" + (7).to_bytes(8, "big") + b"\xff\xff\xff\xff\0\0" + (9).to_bytes(8, "big")
    assert rv.decode_coordinator_key(key_bytes) == key
    assert rv.decode_coordinator_value(key, value_bytes) == (value, 3)


def test_a_coordinator_key_of_an_unknown_type_is_none() -> None:
    """RULE 2."""
    assert rv.decode_coordinator_key(b"\x00\x63whatever") is None
    assert rv.decode_coordinator_key(b"\xff\xff") is None


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0\5g"])
def test_a_broken_coordinator_key_is_malformed(key: bytes) -> None:
    """Not our own exceptions, not Python's."""
    with pytest.raises(MalformedRequest):
        rv.decode_coordinator_key(key)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\5" + bytes(40), b"\xff\xff" + bytes(40), b"\0\3\0"])
def test_a_broken_coordinator_value_is_malformed(value: bytes) -> None:
    """Versions above ours too: we would drop what they mean."""
    with pytest.raises(MalformedRequest):
        rv.decode_coordinator_value(stored.OffsetCommitKey(group="g", topic="t", partition=3), value)


def test_a_control_record_has_its_type_in_the_key() -> None:
    """FORMAT; its version is inside, and what a later one adds is not looked at."""
    voter = LeaderChangeVoter(voter_id=1)
    change = LeaderChangeMessage(leader_id=1, voters=[voter], granting_voters=[voter])
    key, value = rv.encode_control_record(change)
    assert key == b"\0\0\0\2"
    assert value == b"\0\0\0\0\0\1\2\0\0\0\1\0\2\0\0\0\1\0\0"
    assert rv.decode_control_record(key, value) == (2, change)
    change.version, voter.voter_directory_id = 1, bytes(range(16))
    assert rv.decode_control_record(*rv.encode_control_record(change)) == (2, change)
    footer = stored.SnapshotFooterRecord()
    key, value = rv.encode_control_record(footer)
    assert rv.decode_control_record(key, b"\0\7" + value[2:] + b"more") == (4, stored.SnapshotFooterRecord(version=7))


def test_a_control_record_of_an_unknown_type_is_none() -> None:
    """RULE 2."""
    assert rv.decode_control_record(b"\0\0\0\x63", b"") is None
    with pytest.raises(MalformedRequest):
        rv.decode_control_record(b"\0\0", b"")


def test_a_transaction_marker_has_its_version_before_it() -> None:
    """As Kafka's EndTransactionMarker writes it."""
    marker = stored.EndTxnMarker(coordinator_epoch=5)
    key, value = rv.encode_end_txn_marker(marker, rv.CONTROL_COMMIT)
    assert (key, value) == (b"\0\0\0\1", b"\0\0\0\0\0\5")
    assert rv.decode_control_record(key, value) == (rv.CONTROL_COMMIT, marker)
