"""Reads a partition back into a state machine, slice by slice.

RULES    1. A slice takes a few milliseconds of the loop, however long the partition is.
         2. What is read is what the log held when the loading began; nobody appends before it has ended. Where the
            disk would have to be waited for, the step says so, and the next one tries again.
         3. Records of plain batches are cut out by hand: a broker that starts may have a million of them before it.
         4. Broken bytes are a KafkaError or a MalformedRequest; such a partition is not served at all.
NOT HERE What a record means (the machine), when the next slice comes (`coordinator_runtime.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import Any, Final, Protocol, TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.record_codec import read_varint
from protocol.records import (
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    ControlType,
    control_type,
    parse_header,
    records,
)
from storage.io.would_block import WouldBlock

T = TypeVar("T")

SLICE_BYTES: Final = 256 * 1024
MAX_RECORDS_BYTES: Final = 64 * 1024 * 1024
"""What a compressed batch of our own may hold."""

_BATCH = Struct(">qi4xb4xhi16xq6xi")  # base offset, length, magic, attributes, last offset delta, producer id, count

Load = Callable[[bytes, bytes | None, int], None]


class Loadable(Protocol):
    """What a state machine does with what is read back."""

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """Take a record; `producer_id` is -1 outside of a transaction."""

    def load_marker(self, producer_id: int, is_commit: bool) -> None:  # noqa: FBT001
        """Take the end of a transaction."""

    def finish_loading(self) -> Iterator[None]:
        """Everything has been read: finish in steps of a few milliseconds."""


class ReadableLog(Protocol):
    """The log as far as reading it back goes."""

    def bounds(self) -> tuple[int, int]:
        """Where it begins and ends.

        Raises:
            WouldBlock: only the disk knows.
        """

    def read(self, offset: int, max_bytes: int) -> bytes | bytearray | memoryview:
        """Whole batches from the one that holds `offset` or the next one; at least one if there is one.

        Raises:
            WouldBlock: they are not at hand.
        """


Step = WouldBlock[Any] | None
"""What a step came to: nothing but progress, or what has to be waited for before the next one."""


class Loader:
    """One run through a partition; every step of `steps` is a slice of work."""

    def __init__(self, log: ReadableLog, machine: Loadable) -> None:
        self._log = log
        self._machine = machine
        self._position = 0
        self.records = 0
        """Records read so far."""

    def steps(self) -> Iterator[Step]:
        """Do all of it; an empty partition has no steps.

        Raises:
            KafkaError, MalformedRequest: the partition is broken; StorageError: its disk is.
        """
        self._position, end = yield from _patiently(self._log.bounds)
        if self._position < end:
            yield None
        while self._position < end:
            data = yield from _patiently(lambda: self._log.read(self._position, SLICE_BYTES))
            self._feed(bytes(data))
            yield None
        yield from self._machine.finish_loading()

    def _feed(self, data: bytes) -> None:
        at, end = 0, len(data)
        load = self._machine.load
        before = self._position
        while end - at >= BATCH_OVERHEAD:
            base, length, magic, attributes, last_delta, producer_id, count = _BATCH.unpack_from(data, at)
            stop = at + LOG_OVERHEAD + length
            if stop > end or magic != MAGIC or length < BATCH_OVERHEAD - LOG_OVERHEAD:
                break
            if not attributes & TRANSACTIONAL_BIT:
                producer_id = -1
            if attributes & (COMPRESSION_MASK | CONTROL_BIT):
                self._feed_batch(data, at, producer_id)
            else:
                _feed_plain(data, at + BATCH_OVERHEAD, stop, count, producer_id, load)
            self.records += count
            self._position = base + last_delta + 1
            at = stop
        if self._position == before:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"there is no whole batch at offset {before}")

    def _feed_batch(self, data: bytes, at: int, producer_id: int) -> None:
        """A batch that is compressed, or holds a transaction's end."""
        header = parse_header(data, at)
        for record in records(data, at, header, max_bytes=MAX_RECORDS_BYTES):
            if not header.is_control:
                if record.key is not None:
                    self._machine.load(record.key, record.value, producer_id)
            elif control_type(record.key) in {ControlType.ABORT, ControlType.COMMIT}:
                self._machine.load_marker(header.producer_id, control_type(record.key) == ControlType.COMMIT)


def _patiently(ask: Callable[[], T]) -> Generator[WouldBlock[Any], None, T]:
    """What `ask` answers in the end; every time that it would block is a step."""
    while True:
        try:
            return ask()
        except WouldBlock as blocked:
            yield blocked


def _feed_plain(data: bytes, at: int, stop: int, count: int, producer_id: int, load: Load) -> None:
    """Hand on key and value of every record; timestamps, offsets and headers do not matter here."""
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
            if not at <= key_end < value_end < record_end <= stop:  # behind the value stands the number of headers
                raise _broken()
            if length >= 0:
                value = None if value_length < 0 else data[value_at:value_end]
                load(data[at:key_end], value, producer_id)
            at = record_end
    except IndexError:
        raise _broken() from None


def _broken() -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record runs past the end of its batch")
