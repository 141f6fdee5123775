"""Reads a partition back into a coordinator, slice by slice (Kafka: CoordinatorLoader).

RULES    1. A slice takes a few milliseconds of the loop, independent of the partition's size.
         2. The loader reads up to the log end offset at its start; nothing is appended before it ends. A read that
            needs the disk yields the `DiskLookup`; the caller waits for it and then takes the next step.
         3. Records of uncompressed batches are parsed by hand: a starting broker may have to read a million of them.
         4. Corrupt data raise KafkaError or MalformedRequest; the partition is not served then.
NOT HERE The meaning of a record (the coordinator), scheduling of slices (`coordinator_runtime.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Final, Protocol, TypeVar

from protocol.control_records import ControlType, control_type
from protocol.errors import ErrorCode, KafkaError
from protocol.record_codec import read_varint
from protocol.records import (
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    parse_header,
    records,
)
from storage.io.disk_lookup import DiskLookup

T = TypeVar("T")

SLICE_BYTES: Final = 256 * 1024
MAX_RECORDS_BYTES: Final = 64 * 1024 * 1024
"""Limit for the decompressed size of a batch."""

_BATCH = Struct(">qi4xb4xhi16xq6xi")  # base offset, length, magic, attributes, last offset delta, producer id, count

Load = Callable[[bytes, bytes | None, int], None]


class Loadable(Protocol):
    """A coordinator that is being loaded."""

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Load a record; `producer_id` is -1 outside of a transaction."""

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """Load a transaction marker."""

    def finish_loading(self) -> Iterator[None]:
        """All records are read: finish in steps of a few milliseconds."""


class ReadableLog(Protocol):
    """The log to load from."""

    def offset_range(self) -> tuple[int, int] | DiskLookup:
        """Log start offset and log end offset."""

    def read(self, offset: int, max_bytes: int) -> bytes | bytearray | memoryview | DiskLookup:
        """Whole batches, from the batch that contains `offset` or the next one; at least one batch if there is one."""


Step = DiskLookup | None
"""The result of a step: the lookup to wait for, or None."""


class Loader:
    """Loads one partition; every item of `steps` is one slice of work."""

    def __init__(self, log: ReadableLog, coordinator: Loadable) -> None:
        self._log = log
        self._coordinator = coordinator
        self._position = 0
        self.records = 0
        """Records read so far."""

    def steps(self) -> Iterator[Step]:
        """Load the partition; an empty one has no steps.

        Raises:
            KafkaError, MalformedRequest: the data are corrupt.
            StorageError: the disk failed.
        """
        self._position, end = yield from _result(self._log.offset_range)
        if self._position < end:
            yield None
        while self._position < end:
            data = yield from _result(lambda: self._log.read(self._position, SLICE_BYTES))
            if not data:
                break  # the last batches were compacted away, and nothing was appended since
            self._replay(bytes(data))
            yield None
        yield from self._coordinator.finish_loading()

    def _replay(self, data: bytes) -> None:
        at, end = 0, len(data)
        load = self._coordinator.load
        before = self._position
        while end - at >= BATCH_OVERHEAD:
            base, length, magic, attributes, last_delta, producer_id, count = _BATCH.unpack_from(data, at)
            stop = at + LOG_OVERHEAD + length
            if stop > end or magic != MAGIC or length < BATCH_OVERHEAD - LOG_OVERHEAD:
                break
            if not attributes & TRANSACTIONAL_BIT:
                producer_id = -1
            if attributes & (COMPRESSION_MASK | CONTROL_BIT):
                self._replay_batch(data, at, producer_id)
            else:
                _replay_plain(data, at + BATCH_OVERHEAD, stop, count, producer_id, load)
            self.records += count
            self._position = base + last_delta + 1
            at = stop
        if self._position == before:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no complete batch at offset {before}")

    def _replay_batch(self, data: bytes, at: int, producer_id: int) -> None:
        """A compressed batch or a control batch."""
        header = parse_header(data, at)
        for record in records(data, at, header, max_bytes=MAX_RECORDS_BYTES):
            if not header.is_control:
                if record.key is not None:
                    self._coordinator.load(record.key, record.value, producer_id)
            elif control_type(record.key) in {ControlType.ABORT, ControlType.COMMIT}:
                self._coordinator.load_marker(header.producer_id, control_type(record.key) == ControlType.COMMIT)


def _result(read: Callable[[], T | DiskLookup]) -> Generator[DiskLookup, None, T]:
    """Call `read` until it returns its result; every `DiskLookup` is a step."""
    while isinstance(found := read(), DiskLookup):
        yield found
    return found


def _replay_plain(data: bytes, at: int, stop: int, count: int, producer_id: int, load: Load) -> None:
    """Parse key and value of every record by hand; timestamps, offsets and headers are skipped."""
    try:
        for _ in range(count):
            length, at = read_varint(data, at)
            record_end = at + length
            at += 1  # attributes
            while data[at] >= 0x80:  # timestamp delta
                at += 1
            at += 1
            while data[at] >= 0x80:  # offset delta
                at += 1
            at += 1
            byte = data[at]
            if byte < 0x80:
                length, at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                length, at = read_varint(data, at)
            key_end = at + length
            if length < 0:
                key_end = at
            byte = data[key_end]
            if byte < 0x80:
                value_length, value_at = (byte >> 1) ^ -(byte & 1), key_end + 1
            else:
                value_length, value_at = read_varint(data, key_end)
            value_end = value_at + value_length if value_length > 0 else value_at
            if not at <= key_end < value_end < record_end <= stop:  # the number of headers follows the value
                raise _broken()
            if length >= 0:
                value = None if value_length < 0 else data[value_at:value_end]
                load(data[at:key_end], value, producer_id)
            at = record_end
    except IndexError:
        raise _broken() from None


def _broken() -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record runs past the end of its batch")
