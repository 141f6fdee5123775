"""The records of coordinators, and the batches that contain them.

FORMAT   a record of an internal topic: key = i16 record type, then the key message (never flexible);
         value = i16 version, then the message in that version; a null value is a tombstone
NOT HERE Appending and applying them (`coordinator_runtime.py`), the messages (`protocol/messages/stored_records.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

from protocol.batch_builder import BatchBuilder
from protocol.codec import encode
from protocol.errors import MalformedRequest
from protocol.records import BATCH_OVERHEAD

RECORD_OVERHEAD: Final = 32
"""Upper bound of a record's size without its key and value, in bytes."""

_I16 = Struct(">h")


class StoredRecord(NamedTuple):
    """One record of an internal topic. The class of the key message gives the record type; `version` is the value's.

    `encoded` holds ready bytes of key and value; then `key` and `value` can be any objects that `apply` understands.
    """

    key: Any
    value: Any
    version: int = 0
    encoded: tuple[bytes, bytes | None] | None = None


class EncodedRecords(NamedTuple):
    """The records of one batch, encoded together: offset deltas from 0, timestamp delta 0, no transaction."""

    body: bytes
    size: int
    """The number of records."""
    apply: Callable[[], None]
    """Replays them, after the append."""


def encode_record(record: StoredRecord) -> tuple[bytes, bytes | None]:
    """Key and value as bytes."""
    key, value, version, ready = record
    if ready is not None:
        return ready
    encoded = _I16.pack(type(key).API_KEY) + encode(key, 0)
    return encoded, None if value is None else _I16.pack(version) + encode(value, version)


def version_of(value: bytes, highest: int) -> int:
    """The version at the start of a value."""
    if len(value) < 2:
        raise MalformedRequest("a stored value has no version")
    (version,) = _I16.unpack_from(value)
    if not 0 <= version <= highest:
        raise MalformedRequest(f"a stored value has version {version}; the highest known is {highest}")
    return int(version)


def batches_of(
    records: Sequence[StoredRecord], wall_ms: int, limit: int, producer: tuple[int, int] | None, *, is_atomic: bool
) -> list[tuple[bytearray, Sequence[StoredRecord]]]:
    """The batches of some records, each with its records; one batch if they are atomic or fit into `limit` bytes.

    `producer` is the producer id and epoch of their transaction.
    """
    encoded = list(map(encode_record, records))
    if is_atomic:
        return [(_batch(encoded, wall_ms, producer), records)]
    cuts = [*_batch_starts(encoded, limit), len(encoded)]
    return [(_batch(encoded[first:end], wall_ms, producer), records[first:end]) for first, end in pairwise(cuts)]


def _batch_starts(encoded: Sequence[tuple[bytes, bytes | None]], limit: int) -> list[int]:
    """The indexes of the records that start a batch; a batch of several records is at most `limit` bytes."""
    firsts, size = [0], BATCH_OVERHEAD
    for index, (key, value) in enumerate(encoded):
        record_size = len(key) + len(value or b"") + RECORD_OVERHEAD
        if index > firsts[-1] and size + record_size > limit:
            firsts.append(index)
            size = BATCH_OVERHEAD
        size += record_size
    return firsts


def _batch(encoded: Sequence[tuple[bytes, bytes | None]], wall_ms: int, producer: tuple[int, int] | None) -> bytearray:
    if producer is None:
        builder = BatchBuilder()
    else:
        producer_id, epoch = producer
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, transactional=True)
    builder.extend(wall_ms, encoded)
    return builder.build()
