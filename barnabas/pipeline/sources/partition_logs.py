"""The logs of partitions in log directories: where they begin and end, which transactions they hold, what time is where.

RULES    1. A partition's directory is `<topic>-<number>`; whatever has another ending (`-delete`, `-future`, `-stray`) is none.
         2. Where the same partition lies in several directories, they belong to several brokers: the one that knows the
            greatest high watermark is read.
         3. Without a broker to ask, a log begins at its log start offset and ends at its high watermark, as the checkpoints
            say. A log that no checkpoint speaks of ends with its last whole batch.
         4. A transaction is aborted when its marker, below the high watermark, says so. Segments with others behind them have
            indexes that tell; the one in which the high watermark lies is scanned, from what was open where it begins. What
            began and has no marker there is open, and the last stable offset is the first of these.
         5. A segment that a broker deletes meanwhile tells nothing: what was in it is before what is left.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from barnabas.pipeline.batch_header import CODEC_MASK, OVERHEAD, header_at
from barnabas.pipeline.sources.codecs import decompress
from barnabas.pipeline.sources.damage import DamagedLog
from barnabas.pipeline.sources.decoding import OFFSETS_END, Aborted, decode
from barnabas.pipeline.sources.records import Bodies, read_records
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
from barnabas.pipeline.sources.segment_reading import believed, heads

DIRECTORY = re.compile(r"(.+)-(\d+)")
_ABORT = b"\x00\x00"


class PartitionLog(NamedTuple):
    """One partition's files, as they were when they were looked at."""

    directory: str
    topic: str
    partition: int
    bases: tuple[int, ...]
    start_offset: int
    known_end: int | None
    """The high watermark of the checkpoint."""
    recovery_point: int

    def segment_of(self, offset: int) -> int:
        """The place, among the bases, of the segment in which an offset lies or would."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def written_end(self) -> int:
        """The offset behind the last whole batch."""
        base = self.bases[-1]
        end = base
        with path_of(self.directory, base, ".log").open("rb") as file:
            position = last_position(self.directory, base)
            for _, head in heads(file, believed(file, position, base, OFFSETS_END)):
                end = max(end, head.last_offset + 1)
        return end


def find_logs(paths: Sequence[str]) -> list[PartitionLog]:
    """Every partition's log in some log directories, or in partitions' directories that are named themselves."""
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
    """What a committed reader must know."""

    aborted: tuple[Aborted, ...]
    last_stable_offset: int


def transactions_of(log: PartitionLog, high_watermark: int) -> Transactions:
    """Rule 4."""
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
    return Transactions(tuple(sorted(set(aborted))), min([high_watermark, *is_open.values()]))


def _scanned(path: Path, is_open: dict[int, int], end_offset: int) -> Iterator[Aborted]:
    """The aborted transactions whose markers lie in a file; changes which ones are open."""
    for file in _opened(path):
        for position, head in heads(file):
            if head.base_offset >= end_offset:
                return
            if not head.is_transactional:
                continue
            if not head.is_control:
                is_open.setdefault(head.producer_id, head.base_offset)
                continue
            begun = is_open.pop(head.producer_id, None)
            if begun is not None and _says_abort(os.pread(file.fileno(), head.size, position)):
                yield Aborted(head.producer_id, begun, head.last_offset)


def _opened(path: Path) -> Iterator[BinaryIO]:
    """A segment's file, or nothing where it has gone (rule 5)."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield file


def _says_abort(batch: bytes) -> bool:
    """A marker's key is an i16 version and an i16 type, 0 for an abort."""
    body = bytes(decompress(header_at(batch, 0).attributes & CODEC_MASK, batch[OVERHEAD:]))
    key = int(read_records(Bodies(body, [0], [len(body)], [1])).keys.starts[0])
    return body[key + 2 : key + 4] == _ABORT


# ---- time --------------------------------------------------------------------------------------------------


def first_at(log: PartitionLog, timestamp_ms: int, end_offset: int) -> int | None:
    """The first offset, from the log's start on, whose own timestamp is as late; None when there is none before the end.

    A marker of a transaction counts: a broker that is asked for a moment names it, too.
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
        for at, head in heads(file, believed(file, position, base, near)):
            if head.max_timestamp < timestamp_ms or head.last_offset < log.start_offset or not head.record_count:
                continue
            if head.is_control:
                return head.last_offset
            found = _first_of(os.pread(file.fileno(), head.size, at), log.start_offset, timestamp_ms)
            if found is not None:
                return found
    return None


def _first_of(batch: bytes, start_offset: int, timestamp_ms: int) -> int | None:
    table = decode(batch, start_offset=start_offset, columns=("offset", "timestamp"))
    late = np.flatnonzero(table["timestamp"].cast("int64").to_numpy() >= timestamp_ms * 1000)
    return int(table["offset"][int(late[0])].as_py()) if len(late) else None
