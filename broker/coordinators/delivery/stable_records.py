"""Reads the committed records of a schedule partition that this broker leads, chunk by chunk.

RULES    1. A chunk ends before the last stable offset, and has the aborted transactions of its range: a reader sees what a
            consumer with read_committed sees.
         2. Records are decoded one by one, so that a reader can pause within a large batch.
         3. A chunk ends before a batch whose checksum is wrong, as a consumer does (`check.crcs`): a delivery would give the
            damaged records a correct one.
NOT HERE What the records mean (`deliverer.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.record_codec import read_record, read_varint, read_varlong
from protocol.records import BatchHeader, Record, crc_is_valid, headers, record_bytes
from replication.partition.partition import Partition
from storage.engine import AbortedTransaction
from storage.io.disk_lookup import DiskLookup
from storage.log.open_log import OpenLog

_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Limit for the decompressed size of a batch; Produce has the same."""
_CONTINUED: Final = 0x80
"""The bit of a varint byte that another one follows."""
_SKIPPED_AT_ONCE: Final = 2_048


class Chunk(NamedTuple):
    """Consecutive batches."""

    offset: int
    """The first offset to read: the requested one, or the log start offset above it."""
    stable_end: int
    data: bytes
    batches: list[tuple[int, BatchHeader]]
    """Position and header of the batches with records to read."""
    next_offset: int
    """Where the next chunk begins; `offset` if there is nothing to read yet."""

    def records(self, position: int, header: BatchHeader) -> Iterator[Record | None]:
        """The records of a batch from `offset` on; None for each one before.

        Raises:
            KafkaError: the batch is corrupt.
        """
        data = self._body(position, header)
        append_ms = header.max_timestamp if header.is_log_append_time else None
        at = 0
        with _complete(header):
            for _ in range(header.record_count):
                delta_ms, delta, key, value, pairs, at = read_record(data, at)
                offset = header.base_offset + delta
                if offset < self.offset:
                    yield None
                else:
                    timestamp_ms = header.base_timestamp + delta_ms if append_ms is None else append_ms
                    yield Record(offset, timestamp_ms, key, value, pairs)

    def encoded_records(
        self, position: int, header: BatchHeader, wanted: Container[int]
    ) -> Iterator[tuple[int, bytes] | None]:
        """Offset and encoded record, without its length, for each wanted offset; sometimes None, so that the reader can pause.

        Raises:
            KafkaError: the batch is corrupt.
        """
        data = self._body(position, header)
        is_dense = header.last_offset_delta + 1 == header.record_count
        offset, at = header.base_offset - 1, 0
        with _complete(header):
            for index in range(header.record_count):
                length = data[at]
                if length < _CONTINUED:
                    at += 1
                    end = at + (length >> 1)
                else:
                    length, at = read_varint(data, at)
                    end = at + length
                if is_dense:
                    offset += 1
                else:
                    offset = header.base_offset + read_varint(data, read_varlong(data, at + 1)[1])[0]
                if offset in wanted:
                    yield offset, data[at:end]
                elif index % _SKIPPED_AT_ONCE == 0:
                    yield None
                at = end

    def _body(self, position: int, header: BatchHeader) -> bytes:
        return bytes(record_bytes(self.data, position, header, _MAX_BATCH_BYTES))


@contextmanager
def _complete(header: BatchHeader) -> Iterator[None]:
    """Raises KafkaError if the records end early."""
    try:
        yield
    except IndexError:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is too short") from None


def open_led_log(partition: Partition) -> OpenLog | DiskLookup:
    """The open log of a partition that this broker leads, or the lookup that opens it.

    Raises:
        KafkaError: this broker does not lead the partition, or the log is offline.
    """
    if not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition.open_leader_log() or partition.log.open()


def read_chunk(partition: Partition, offset: int, max_bytes: int) -> Chunk | DiskLookup:
    """The chunk from `offset` on, of at least one batch if there is a stable one.

    Raises:
        KafkaError: this broker does not lead the partition; the log is offline, or damaged at `offset`.
    """
    opened = open_led_log(partition)
    if isinstance(opened, DiskLookup):
        return opened
    log = partition.log
    offset = max(offset, log.offsets.log_start_offset)
    stable_end = opened.reader.last_stable_offset
    if offset >= stable_end:
        return Chunk(offset, stable_end, b"", [], offset)
    found = opened.reader.read_records(offset, max_bytes)
    if isinstance(found, DiskLookup):
        return found
    data = bytes(found)
    stable = takewhile(lambda found: found[1].base_offset < stable_end, headers(data))
    batches = list(takewhile(lambda found: crc_is_valid(data, *found), stable))
    if not batches:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} of {log.name} is damaged")
    next_offset = batches[-1][1].next_offset
    aborted = opened.engine.aborted(offset, next_offset)
    if isinstance(aborted, DiskLookup):
        return aborted
    return Chunk(offset, stable_end, data, [one for one in batches if _is_readable(one[1], aborted)], next_offset)


def _is_readable(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    if header.is_control:
        return False
    return not header.is_transactional or not any(one.contains(header) for one in aborted)
