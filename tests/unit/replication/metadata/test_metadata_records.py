"""Encoding of metadata records and snapshots."""

from __future__ import annotations

import random

import pytest

from protocol.control_records import ControlType
from protocol.messages import stored_records
from protocol.primitives import uvarint
from protocol.records import headers
from protocol.schema import Message
from replication.metadata import metadata_records
from replication.metadata.metadata_records import (
    RECORD_TYPES,
    SNAPSHOT_BATCH_RECORDS,
    SnapshotName,
    UnreadableMetadata,
    Versioned,
    control_records,
    decode_record,
    encode_record,
    read_batches,
    read_snapshot,
    snapshot,
    snapshot_name,
)
from tests.support.metadata_histories import data_batch
from tests.unit.replication.kafka_bytes import BOOTSTRAP_CHECKPOINT, METADATA_LOG

_CONTROL = {cls: ControlType(kind) for kind, cls in metadata_records.CONTROL_MESSAGES.items()}


def test_every_batch_of_an_apache_kafka_log_is_encoded_identically() -> None:
    seen: set[str] = set()
    for position, header in headers(METADATA_LOG):
        raw = METADATA_LOG[position : position + header.size]
        (batch,) = read_batches(raw)
        kept = {
            "base_offset": header.base_offset,
            "leader_epoch": header.leader_epoch,
            "timestamp_ms": header.base_timestamp,
        }
        if batch.is_control:
            again = control_records([(_CONTROL[type(m)], m) for m in batch.messages], **kept)
        else:
            again = data_batch([(m, _version(raw, m, batch.messages)) for m in batch.messages], **kept)
        assert bytes(again) == raw, f"batch at offset {header.base_offset}"
        seen.update(type(m).__name__ for m in batch.messages)
    assert seen >= {
        "LeaderChangeMessage",
        "VotersRecord",
        "RegisterBrokerRecord",
        "PartitionChangeRecord",
        "ConfigRecord",
    }


def _version(raw: bytes, message: Message, messages: list[Message]) -> int:
    """The record version that Kafka chose: the one that gives bytes found in the batch."""
    for version in range(5):
        try:
            if encode_record(message, version) in raw:
                return version
        except ValueError:
            continue
    raise AssertionError(f"{message} of {len(messages)} is not in the batch")


def test_a_record_is_framed_by_frame_version_type_and_version() -> None:
    assert encode_record(stored_records.NoOpRecord(), 0) == bytes([1, 20, 0, 0])
    assert (
        encode_record(stored_records.TopicRecord(name="a", topic_id=b"I" * 16), 0)
        == bytes([1, 2, 0, 2]) + b"a" + b"I" * 16 + b"\0"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "has no value"),
        (b"", "has no value"),
        (b"\x01", "ends within its first bytes"),
        (b"\x01\xff", "ends within its first bytes"),
        (b"\x02\x14\x00\x00", "frame version 2, not 1"),
        (b"\x01" + uvarint(99) + b"\x00\x00", "type 99, which this broker does not know"),
        (b"\x01" + uvarint(300) + b"\x00\x00", "type 300, which this broker does not know"),
        (b"\x01\x14\x01\x00", "a NoOpRecord has version 1; this broker knows up to 0"),
        (b"\x01\x02\x00\x05a", "a metadata record of type 2, version 0, is broken"),
        (b"\x01\x14\x00\x00\x00", "1 bytes follow a metadata record of type 20"),
    ],
)
def test_an_invalid_record_is_refused_with_a_message(value: bytes | None, message: str) -> None:
    with pytest.raises(UnreadableMetadata, match=message):
        decode_record(value)


def test_random_bytes_raise_only_unreadable_metadata() -> None:
    for seed in range(3000):
        rng = random.Random(seed)
        value = bytes([1, rng.choice(list(RECORD_TYPES)), 0]) + rng.randbytes(rng.randint(0, 40))
        try:
            decode_record(value)
        except UnreadableMetadata:
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_a_snapshot_without_its_footer_is_refused() -> None:
    *_, (position, _) = headers(BOOTSTRAP_CHECKPOINT)
    with pytest.raises(UnreadableMetadata, match="the snapshot b is incomplete"):
        read_snapshot(BOOTSTRAP_CHECKPOINT[:position], "b")
    with pytest.raises(UnreadableMetadata, match="the snapshot b is incomplete"):
        read_snapshot(b"", "b")


def test_a_large_snapshot_consists_of_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Versioned] = [
        (stored_records.ConfigRecord(resource_type=4, resource_name="", name=f"n{i}", value="v" * 100), 0)
        for i in range(1000)
    ]
    monkeypatch.setattr("replication.metadata.metadata_records.MAX_BATCH_BYTES", 5000)
    written = snapshot([], records, leader_epoch=3, timestamp_ms=5, last_contained_ms=4)
    batches = read_batches(written)
    assert [b.base_offset for b in batches] == [0, *(b.last_offset + 1 for b in batches[:-1])]
    assert {b.leader_epoch for b in batches} == {3}
    assert 1000 / SNAPSHOT_BATCH_RECORDS < len(batches) - 2 < 100
    assert max(b.size for b in batches) <= 5000
    found = read_snapshot(written, "s")
    assert found.data == [record for record, _ in records]
    assert found.last_contained_ms == 4


def test_only_names_of_finished_snapshots_are_recognised() -> None:
    assert snapshot_name("00000000000000000361-0000000002.checkpoint") == SnapshotName(361, 2)
    assert str(SnapshotName(361, 2)) == "00000000000000000361-0000000002.checkpoint"
    for name in (
        "00000000000000000361-0000000002.checkpoint.part",
        "00000000000000000361-0000000002.checkpoint.deleted",
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "0000000000000000036x-0000000002.checkpoint",
    ):
        assert snapshot_name(name) is None, name
