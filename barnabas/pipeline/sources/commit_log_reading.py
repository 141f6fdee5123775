"""Reads the batches of one partition from a file of a commit log.

RULES    1. The batches to read are named by the entries of the queue file; for a file without one, the driver found them in the
            frames.
         2. A batch must be the one that its entry names, and its CRC must be right. Otherwise the log is damaged; in the newest
            file, above the recovery point, it ends there, as for a broker that starts on it.
         3. Batches between those of others are read one by one; those that touch, together.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from barnabas.client.batch_header import LENGTH_END, OVERHEAD, BatchHeader, header_at
from barnabas.pipeline.sources.batches import last_offsets, read_headers
from barnabas.pipeline.sources.commit_log_files import ENTRY, read_entries
from barnabas.pipeline.sources.commit_log_slots import Slot
from barnabas.pipeline.sources.damage import DamagedBatch, DamagedLog, MissingFile, MissingRecords, WrongChecksum
from barnabas.pipeline.sources.decoding import Decoder, ReadRequest

CHUNK_BYTES = 16 << 20

log = logging.getLogger(__name__)


class StoredHeader(NamedTuple):
    """The header of a batch in an open file."""

    file: BinaryIO
    position: int
    header: BatchHeader


class CommitLogRead(NamedTuple):
    """The batches that a task reads; the offsets are in its ReadRequest."""

    path: str
    topic_id: str
    """In hexadecimal digits."""
    queue_path: str | None
    """None: the entries are in `packed`."""
    position: int
    """Of the entries in the queue file."""
    entry_count: int
    packed: bytes
    recovery_point: int
    fail_on_data_loss: bool


def tasks_of(
    slot: Slot, request: ReadRequest, recovery_point: int, *, end_is_from_broker: bool, fail_on_data_loss: bool
) -> Iterator[tuple[CommitLogRead, ReadRequest]]:
    """Yields the files to read for a partition's records, and the offsets in each."""
    if request.end_offset > slot.end_offset and fail_on_data_loss:
        _report_early_end(slot, request, recovery_point, end_is_from_broker=end_is_from_broker)
    begin = request.start_offset
    for file, position, entries in slot.entries(begin, request.end_offset):
        until = min(int(entries["last_offset"][-1]) + 1, request.end_offset)
        queue_path = None if file.queue is None else str(file.queue.path)
        packed = entries.tobytes() if file.queue is None else b""
        yield (
            CommitLogRead(
                str(file.path),
                slot.topic_id,
                queue_path,
                position,
                len(entries),
                packed,
                recovery_point,
                fail_on_data_loss,
            ),
            request._replace(start_offset=begin, end_offset=until),
        )
        begin = until


def _report_early_end(slot: Slot, request: ReadRequest, recovery_point: int, *, end_is_from_broker: bool) -> None:
    """The log ends before the last requested offset."""
    if slot.lost_from is not None or slot.end_offset < recovery_point:
        raise DamagedLog(
            f"The commit log of {request.tp} is damaged: its records from offset {slot.end_offset} on are lost."
        )
    message = f"The commit log of {request.tp} ends at offset {slot.end_offset}, before offset {request.end_offset}"
    if end_is_from_broker:
        raise MissingRecords(f"{message}, which the broker has; failOnDataLoss=false skips the rest.")
    log.warning("%s.", message)


def scan_slot(slot: Slot, offset: int, end_offset: int, timestamp_ms: int | None) -> Iterator[StoredHeader]:
    """Yields the headers of batches in a range of offsets, without those that are older than a timestamp."""
    for found in slot.entries(offset, end_offset):
        entries = found.found
        if timestamp_ms is not None:
            entries = entries[entries["max_timestamp"].astype(np.int64) >= timestamp_ms]
        if not len(entries):
            continue
        with found.file.path.open("rb") as file:
            for position in entries["position"].tolist():
                data = os.pread(file.fileno(), OVERHEAD, position)
                if len(data) == OVERHEAD and (header := header_at(data, 0)).base_offset < end_offset:
                    yield StoredHeader(file, position, header)


def read_commit_log(part: CommitLogRead, request: ReadRequest) -> Iterator[Any]:
    """Yields the records as Arrow batches. Raises DamagedLog or MissingFile."""
    try:
        file = Path(part.path).open("rb")  # noqa: SIM115  # closed below
        entries = (
            np.frombuffer(part.packed, ENTRY)
            if part.queue_path is None
            else read_entries(Path(part.queue_path), part.position, part.entry_count)
        )
    except FileNotFoundError as error:
        raise MissingFile(error.filename) from error
    with file:
        decoder = Decoder(request)
        for chunk in _chunks(entries):
            buffer, positions = _read(file, chunk)
            try:
                _check_named(buffer, positions, chunk)
                yield from decoder.batches(buffer, positions)
            except DamagedBatch as damage:
                if part.queue_path is None and _offset_of(damage, chunk) >= part.recovery_point:
                    log.warning("%s ends before offset %d: %s.", part.path, request.end_offset, damage)
                    return
                raise DamagedLog(f"{part.path} is damaged: {damage}.") from damage


def _offset_of(damage: DamagedBatch, chunk: Any) -> int:
    return damage.offset if isinstance(damage, WrongChecksum) else int(chunk["last_offset"][0])


def _chunks(entries: Any) -> Iterator[Any]:
    """Entries in groups of about CHUNK_BYTES."""
    ends = np.cumsum(entries["size"].astype(np.int64))
    first = 0
    while first < len(entries):
        before = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, before + CHUNK_BYTES, side="right")), first + 1)
        yield entries[first:stop]
        first = stop


def _read(file: BinaryIO, entries: Any) -> tuple[bytearray, Any]:
    """The batches of the entries side by side, and their positions in the buffer."""
    sizes = entries["size"].astype(np.int64)
    starts = entries["position"].astype(np.int64)
    positions = np.cumsum(sizes) - sizes
    buffer = bytearray(int(sizes.sum()))
    view = memoryview(buffer)
    begins = np.flatnonzero(np.concatenate([[True], starts[1:] != starts[:-1] + sizes[:-1]]))
    for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(entries)], strict=True):
        at = int(positions[begin])
        end = int(positions[stop - 1] + sizes[stop - 1])
        os.preadv(file.fileno(), [view[at:end]], int(starts[begin]))
    return buffer, positions


def _check_named(buffer: bytearray, positions: Any, entries: Any) -> None:
    """Raises DamagedBatch if a batch is not the one that its entry names."""
    headers = read_headers(buffer, positions)
    is_named = (last_offsets(headers) == entries["last_offset"]) & (headers["length"] + LENGTH_END == entries["size"])
    wrong = np.flatnonzero(~is_named)
    if len(wrong):
        raise DamagedBatch(
            f"at position {int(entries['position'][wrong[0]])} is not the batch that the queue file names"
        )
