"""Finds the logs of partitions in log directories: their start and end offsets, transactions and timestamps.

RULES    1. A partition's directory is `<topic>-<number>`. Directories with a suffix (`-delete`, `-future`,
            `-stray`) are ignored.
         2. If several directories hold the same partition, they belong to several brokers: the one with the largest high
            watermark is read.
         3. Without a broker, the checkpoints give the log start offset and the high watermark. A log without a checkpoint ends
            with its last complete batch.
         4. A transaction is aborted if its marker, below the high watermark, says so. Older segments have an index of aborted
            transactions. The segment of the high watermark is scanned, starting with the transactions that were open at its
            base offset. Transactions without a marker are open; the smallest first offset is the last stable offset, as in a
            broker not below the log start: DeleteRecords may remove the first records of an open transaction.
         5. A segment that the broker deletes meanwhile is skipped: its records are below the log start.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from barnabas.client.batch_header import CODEC_MASK, OVERHEAD, header_at
from barnabas.pipeline.sources.codecs import decompress
from barnabas.pipeline.sources.damage import DamagedLog
from barnabas.pipeline.sources.decoding import OFFSETS_END, Aborted, decode
from barnabas.pipeline.sources.records import BatchRecords, read_records
from barnabas.pipeline.sources.segment_files import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    Offsets,
    aborted_in,
    bases_of,
    last_position,
    latest_time,
    offset_before_time,
    open_transactions,
    path_of,
    position_before,
    read_checkpoint,
)
from barnabas.pipeline.sources.segment_reading import scan_headers, verified_position

DIRECTORY = re.compile(r"(.+)-(\d+)")
_ABORT = b"\x00\x00"


class PartitionLog(NamedTuple):
    """The files of one partition at the time of listing."""

    directory: str
    topic: str
    partition: int
    bases: tuple[int, ...]
    start_offset: int
    known_end: int | None
    """The checkpointed high watermark."""
    recovery_point: int

    def segment_of(self, offset: int) -> int:
        """Returns the index of the segment that contains the offset."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def written_end(self) -> int:
        """Returns the offset after the last complete batch."""
        base = self.bases[-1]
        end = base
        with path_of(self.directory, base, ".log").open("rb") as file:
            position = last_position(self.directory, base)
            for _, header in scan_headers(file, verified_position(file, position, base, OFFSETS_END)):
                end = max(end, header.last_offset + 1)
        return end


def find_logs(paths: Sequence[str]) -> list[PartitionLog]:
    """Returns the log of each partition in these log directories or partition directories. Raises DamagedLog."""
    best: dict[tuple[str, int], PartitionLog] = {}
    for found in (log for path in paths for log in _logs_at(Path(path))):
        place = found.topic, found.partition
        if place not in best or (found.known_end or 0) > (best[place].known_end or 0):
            best[place] = found
    return [best[place] for place in sorted(best)]


def _logs_at(path: Path) -> Iterator[PartitionLog]:
    if not path.is_dir():
        raise DamagedLog(f"There is no log directory {path} on this machine.")
    is_one = bool(DIRECTORY.fullmatch(path.name)) and any(path.glob("*.log"))
    root = path.parent if is_one else path
    starts, ends, recovered = (read_checkpoint(root / name) for name in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS))
    for directory in [path] if is_one else sorted(path.iterdir()):
        named = DIRECTORY.fullmatch(directory.name)
        if named and directory.is_dir() and (bases := bases_of(str(directory))):
            place = named[1], int(named[2])
            yield PartitionLog(
                str(directory),
                *place,
                tuple(bases),
                max(bases[0], _known(starts, place)),
                ends.get(place) if ends else None,
                _known(recovered, place),
            )


def _known(offsets: Offsets | None, place: tuple[str, int]) -> int:
    return (offsets or {}).get(place, 0)


# ---- transactions ------------------------------------------------------------------------------------------


class Transactions(NamedTuple):
    """Aborted transactions and the last stable offset."""

    aborted: tuple[Aborted, ...]
    last_stable_offset: int


def transactions_of(log: PartitionLog, high_watermark: int) -> Transactions:
    """Finds the transactions of a log (rule 4)."""
    place = log.segment_of(max(high_watermark - 1, log.bases[0]))
    aborted = [one for base in log.bases[:place] for one in aborted_in(log.directory, base)]
    while place and (is_open := open_transactions(log.directory, log.bases[place])) is None:
        place -= 1
    if not place:
        is_open = open_transactions(log.directory, log.bases[0]) or {}
    assert is_open is not None
    for base in log.bases[place:]:
        if base < high_watermark:
            aborted += _scanned(path_of(log.directory, base, ".log"), is_open, high_watermark)
    last_stable_offset = max(log.start_offset, min([high_watermark, *is_open.values()]))
    return Transactions(tuple(sorted(set(aborted))), last_stable_offset)


def _scanned(path: Path, is_open: dict[int, int], end_offset: int) -> Iterator[Aborted]:
    """Yields the aborted transactions of a file and updates the open ones."""
    for file in _opened(path):
        for position, header in scan_headers(file):
            if header.base_offset >= end_offset:
                return
            if not header.is_transactional:
                continue
            if not header.is_control:
                is_open.setdefault(header.producer_id, header.base_offset)
                continue
            begun = is_open.pop(header.producer_id, None)
            if begun is not None and _says_abort(os.pread(file.fileno(), header.size, position)):
                yield Aborted(header.producer_id, begun, header.last_offset)


def _opened(path: Path) -> Iterator[BinaryIO]:
    """Yields the open file, or nothing if it is deleted (rule 5)."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield file


def _says_abort(batch: bytes) -> bool:
    """A marker's key is an i16 version and an i16 type, 0 for an abort."""
    body = bytes(decompress(header_at(batch, 0).attributes & CODEC_MASK, batch[OVERHEAD:]))
    key = int(read_records(BatchRecords(body, [0], [len(body)], [1])).keys.starts[0])
    return body[key + 2 : key + 4] == _ABORT


# ---- time --------------------------------------------------------------------------------------------------


def first_at(log: PartitionLog, timestamp_ms: int, end_offset: int) -> int | None:
    """Returns the first offset at or above the log start whose timestamp is at least this; None if there is none.

    Transaction markers count, as in a broker's ListOffsets.
    """
    for place in range(log.segment_of(log.start_offset), len(log.bases)):
        base = log.bases[place]
        is_newest = place == len(log.bases) - 1
        if base >= end_offset:
            return None
        if not is_newest and (latest := latest_time(log.directory, base)) is not None and latest < timestamp_ms:
            continue
        found = _first_in(log, base, timestamp_ms)
        if found is not None:
            return found if found < end_offset else None
    return None


def _first_in(log: PartitionLog, base: int, timestamp_ms: int) -> int | None:
    near = max(offset_before_time(log.directory, base, timestamp_ms), log.start_offset)
    for file in _opened(path_of(log.directory, base, ".log")):
        position = position_before(log.directory, base, near) if near > base else 0
        for at, header in scan_headers(file, verified_position(file, position, base, near)):
            if header.max_timestamp < timestamp_ms or header.last_offset < log.start_offset or not header.record_count:
                continue
            if header.is_control:
                return header.last_offset
            found = _first_of(os.pread(file.fileno(), header.size, at), log.start_offset, timestamp_ms)
            if found is not None:
                return found
    return None


def _first_of(batch: bytes, start_offset: int, timestamp_ms: int) -> int | None:
    table = decode(batch, start_offset=start_offset, columns=("offset", "timestamp"))
    late = np.flatnonzero(table["timestamp"].cast("int64").to_numpy() >= timestamp_ms * 1000)
    return int(table["offset"][int(late[0])].as_py()) if len(late) else None
