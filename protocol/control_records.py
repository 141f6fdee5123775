"""Control records: the ends of transactions, and those of the metadata log.

FORMAT   a control record's key is i16 version 0, i16 type; the value of an EndTxn marker i16 version 0, i32 coordinator epoch
NOT HERE The batch around them (`batch_builder.py`), the values of those of the metadata log (`replication/metadata_log/`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct

from protocol.batch_builder import BatchBuilder
from protocol.record_codec import invalid_record
from protocol.records import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_CONTROL_KEY = Struct(">hh")
_END_TXN_VALUE = Struct(">hi")


class ControlType(IntEnum):
    """The type in a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def control_batch(
    entries: Iterable[tuple[ControlType, bytes]],
    *,
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    """Builds one batch of control records from types and encoded values."""
    builder = BatchBuilder(
        base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
    )
    for kind, value in entries:
        builder.append(timestamp_ms, _CONTROL_KEY.pack(0, kind), value)
    return builder.build()


def end_txn_marker(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Builds the control batch that ends a transaction in one partition: COMMIT or ABORT."""
    return control_batch(
        [(kind, _END_TXN_VALUE.pack(0, coordinator_epoch))],
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )


def control_type(key: bytes | None) -> int:
    """The type in a control record's key; a number that ControlType lacks belongs to a later version."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise invalid_record("Invalid control record key: it has fewer than 4 bytes")
    version, kind = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise invalid_record(f"Invalid version found for control record: {version}. May indicate data corruption")
    return int(kind)


def coordinator_epoch_of(value: bytes | None) -> int:
    """The coordinator epoch in the value of an EndTxn marker."""
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise invalid_record("Invalid end transaction marker: its value has fewer than 6 bytes")
    _, coordinator_epoch = _END_TXN_VALUE.unpack_from(value)
    return int(coordinator_epoch)
