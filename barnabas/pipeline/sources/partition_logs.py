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
         6. A partition may change its storage engine after the plan, and a run may replace a file of a commit log: the topic id
            tells whether it is still the same partition.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from barnabas.client.batch_header import CODEC_MASK, OVERHEAD, header_at
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.batches import corrupt_batches, read_headers
from barnabas.pipeline.sources.codecs import decompress
from barnabas.pipeline.sources.commit_log_reading import CommitLogRead, StoredHeader, scan_slot, tasks_of
from barnabas.pipeline.sources.commit_log_slots import Slot, read_slots
from barnabas.pipeline.sources.damage import DamagedLog
from barnabas.pipeline.sources.decoding import OFFSETS_END, Aborted, ReadRequest, decode
from barnabas.pipeline.sources.records import BatchRecords, read_records
from barnabas.pipeline.sources.segment_files import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Offsets,
    aborted_in,
    bases_of,
    last_position,
    latest_time,
    offset_before_time,
    open_transactions,
    open_transactions_in,
    path_of,
    position_before,
    read_checkpoint,
    topic_id_in,
)
from barnabas.pipeline.sources.segment_reading import SegmentRead, scan_headers, verified_position

DIRECTORY = re.compile(r"(.+)-(\d+)")
_ABORT = b"\x00\x00"

Task = tuple[SegmentRead | CommitLogRead, ReadRequest]
"""What one worker reads."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """One partition as it was when the directory was listed; its subclasses are the two storage engines."""

    directory: str
    tp: TopicPartition
    bases: tuple[int, ...]
    """The base offsets of its segments."""
    start_offset: int
    known_end: int | None
    """The checkpointed high watermark."""
    recovery_point: int

    def segment_of(self, offset: int) -> int:
        """Returns the index of the segment that contains the offset."""
        return max(bisect_right(self.bases, offset) - 1, 0)


class PartitionLog(StoredLog):
    """A partition in segment files."""

    __slots__ = ()

    def written_end(self) -> int:
        """Returns the offset after the last complete batch."""
        base = self.bases[-1]
        end = base
        with path_of(self.directory, base, ".log").open("rb") as file:
            position = last_position(self.directory, base)
            for _, header in scan_headers(file, verified_position(file, position, base, OFFSETS_END)):
                end = max(end, header.last_offset + 1)
        return end

    def aborted_in(self, base: int) -> list[Aborted]:
        """Returns the aborted transactions of a segment's index."""
        return aborted_in(self.directory, base)

    def open_transactions(self, base: int) -> dict[int, int] | None:
        """Returns the transactions that are open at the base offset of a segment; None without a snapshot."""
        return open_transactions(self.directory, base)

    def scan(self, base: int, timestamp_ms: int | None = None) -> Iterator[StoredHeader]:
        """Yields the batches of a segment, without most that are older than a timestamp; nothing if it is deleted (rule 5)."""
        near, position = base, 0
        if timestamp_ms is not None:
            near = max(offset_before_time(self.directory, base, timestamp_ms), self.start_offset)
            position = position_before(self.directory, base, near) if near > base else 0
        for file in _opened(path_of(self.directory, base, ".log")):
            for at, header in scan_headers(file, verified_position(file, position, base, near)):
                yield StoredHeader(file, at, header)

    def is_before(self, base: int, timestamp_ms: int) -> bool:
        """Whether all records of an inactive segment are known to be older."""
        latest = latest_time(self.directory, base) if base != self.bases[-1] else None
        return latest is not None and latest < timestamp_ms

    def may_end_at(self, base: int, offset: int) -> bool:
        """Whether damage at an offset of a segment may be the end of the log, as for a starting broker."""
        return base == self.bases[-1] and offset >= self.recovery_point

    def tasks(self, request: ReadRequest, *, end_is_from_broker: bool, fail_on_data_loss: bool) -> Iterator[Task]:
        """Yields the segments to read."""
        topic_id = topic_id_in(self.directory)
        for number in range(self.segment_of(request.start_offset), len(self.bases)):
            base = self.bases[number]
            is_newest = number == len(self.bases) - 1
            begin = max(request.start_offset, base)
            until = request.end_offset if is_newest else min(request.end_offset, self.bases[number + 1])
            if begin < until:
                segment = SegmentRead(
                    self.directory,
                    topic_id,
                    base,
                    is_newest,
                    self.recovery_point,
                    end_is_from_broker,
                    fail_on_data_loss,
                )
                yield segment, request._replace(start_offset=begin, end_offset=until)


@dataclass(frozen=True, slots=True)
class CommitLogPartition(StoredLog):
    """A partition in a commit log, with the methods of PartitionLog."""

    slot: Slot

    def written_end(self) -> int:
        """Returns the offset after the last complete batch."""
        return self.slot.end_offset

    def aborted_in(self, base: int) -> list[Aborted]:
        """Returns the aborted transactions whose markers are in a segment."""
        return [
            transaction for transaction in self.slot.aborted if base <= transaction.last_offset < self._end_of(base)
        ]

    def open_transactions(self, base: int) -> dict[int, int] | None:
        """Returns the transactions that are open at the base offset of a segment; None without a snapshot."""
        data = self.slot.snapshots.get(base)
        return None if data is None else open_transactions_in(data)

    def scan(self, base: int, timestamp_ms: int | None = None) -> Iterator[StoredHeader]:
        """Yields the batches of a segment, without those that are older than a timestamp."""
        return scan_slot(self.slot, base, self._end_of(base), timestamp_ms)

    def is_before(self, base: int, timestamp_ms: int) -> bool:
        """Whether all records of an inactive segment are known to be older: `scan` finds out as fast."""
        del base, timestamp_ms
        return False

    def may_end_at(self, base: int, offset: int) -> bool:
        """Whether damage may be the end of the log: the frames of files that are not sealed were checked."""
        del base, offset
        return False

    def tasks(self, request: ReadRequest, *, end_is_from_broker: bool, fail_on_data_loss: bool) -> Iterator[Task]:
        """Yields the files to read."""
        return tasks_of(
            self.slot,
            request,
            self.recovery_point,
            end_is_from_broker=end_is_from_broker,
            fail_on_data_loss=fail_on_data_loss,
        )

    def _end_of(self, base: int) -> int:
        following = self.segment_of(base) + 1
        return self.bases[following] if following < len(self.bases) else OFFSETS_END


AnyLog = PartitionLog | CommitLogPartition
_LogFields = tuple[str, TopicPartition, tuple[int, ...], int, int | None, int]
"""The fields of StoredLog."""


def find_logs(paths: Sequence[str]) -> list[AnyLog]:
    """Returns the log of each partition in these log directories or partition directories. Raises DamagedLog."""
    best: dict[TopicPartition, AnyLog] = {}
    for log in (log for path in paths for log in _logs_at(Path(path))):
        if log.tp not in best or (log.known_end or 0) > (best[log.tp].known_end or 0):
            best[log.tp] = log
    return [best[tp] for tp in sorted(best)]


def _logs_at(path: Path) -> Iterator[AnyLog]:
    if not path.is_dir():
        raise DamagedLog(f"There is no log directory {path} on this machine.")
    is_one = bool(DIRECTORY.fullmatch(path.name)) and (any(path.glob("*.log")) or (path / PARTITION_METADATA).exists())
    root = path.parent if is_one else path
    slots = read_slots(root)
    starts, ends, recovered = (read_checkpoint(root / name) for name in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS))

    def fields(directory: Path, tp: TopicPartition, bases: Sequence[int]) -> _LogFields:
        known_end = ends.get(tp) if ends else None
        start_offset = max(bases[0], _known(starts, tp))
        return str(directory), tp, tuple(bases), start_offset, known_end, _known(recovered, tp)

    for directory in [path] if is_one else sorted(path.iterdir()):
        named = DIRECTORY.fullmatch(directory.name)
        if not named or not directory.is_dir():
            continue
        tp = TopicPartition(named[1], int(named[2]))
        if bases := bases_of(str(directory)):
            yield PartitionLog(*fields(directory, tp, bases))
        elif slot := slots.get((topic_id_in(str(directory)), tp.partition)):
            yield CommitLogPartition(*fields(directory, tp, slot.bases), slot)
    for slot in [] if is_one else slots.values():
        if slot.topic:
            tp = TopicPartition(slot.topic, slot.partition)
            yield CommitLogPartition(*fields(path / str(tp), tp, slot.bases), slot)


def tasks_after_move(part: SegmentRead | CommitLogRead, request: ReadRequest) -> list[Task]:
    """What to read instead of a file that is gone (rule 6), without deleted records; empty if there is nothing."""
    root = Path(part.directory if isinstance(part, SegmentRead) else part.path).parent
    if isinstance(part, CommitLogRead):
        log = _log_of(root.parent, request.tp, part.topic_id, part.recovery_point)
        has_moved = not isinstance(log, CommitLogPartition) or log.slot.is_replaced(Path(part.path))
    else:
        log = _log_of(root, request.tp, part.topic_id, part.recovery_point)
        has_moved = not isinstance(log, PartitionLog)
    if log is None or not has_moved:
        return []
    wanted = request._replace(start_offset=max(request.start_offset, log.start_offset))
    return list(log.tasks(wanted, end_is_from_broker=False, fail_on_data_loss=part.fail_on_data_loss))


def _log_of(root: Path, tp: TopicPartition, topic_id: str, recovery_point: int) -> AnyLog | None:
    """The partition with this topic id in a log directory; it starts at its first segment. None without an id."""
    if not topic_id:
        return None
    directory = root / str(tp)
    if topic_id_in(str(directory)) == topic_id and (bases := bases_of(str(directory))):
        return PartitionLog(str(directory), tp, tuple(bases), bases[0], None, recovery_point)
    slot = read_slots(root).get((topic_id, tp.partition))
    if slot is None:
        return None
    return CommitLogPartition(str(directory), tp, tuple(slot.bases), slot.bases[0], None, recovery_point, slot)


def _known(offsets: Offsets | None, tp: TopicPartition) -> int:
    return (offsets or {}).get(tp, 0)


# ---- transactions ------------------------------------------------------------------------------------------


class Transactions(NamedTuple):
    """Aborted transactions and the last stable offset."""

    aborted: tuple[Aborted, ...]
    last_stable_offset: int


def transactions_of(log: AnyLog, high_watermark: int) -> Transactions:
    """Finds the transactions of a log (rule 4)."""
    scanned_from = log.segment_of(max(high_watermark - 1, log.bases[0]))
    aborted = [transaction for base in log.bases[:scanned_from] for transaction in log.aborted_in(base)]
    while (open_offsets := log.open_transactions(log.bases[scanned_from])) is None and scanned_from:
        scanned_from -= 1
    open_offsets = open_offsets or {}
    for base in log.bases[scanned_from:]:
        if base < high_watermark:
            aborted += _scan_transactions(log, base, open_offsets, high_watermark)
    last_stable_offset = max(log.start_offset, min([high_watermark, *open_offsets.values()]))
    return Transactions(tuple(sorted(set(aborted))), last_stable_offset)


def _scan_transactions(log: AnyLog, base: int, open_offsets: dict[int, int], end_offset: int) -> Iterator[Aborted]:
    """Yields the aborted transactions of a segment; updates the first offset of each producer's open transaction."""
    for file, position, header in log.scan(base):
        if header.base_offset >= end_offset:
            return
        if not header.is_transactional:
            continue
        if not header.is_control:
            open_offsets.setdefault(header.producer_id, header.base_offset)
            continue
        if header.producer_id in open_offsets:
            batch = _checked_batch(log, base, StoredHeader(file, position, header))
            if batch is None:
                return
            first_offset = open_offsets.pop(header.producer_id)
            if _is_abort_marker(batch):
                yield Aborted(header.producer_id, first_offset, header.last_offset)


def _checked_batch(log: AnyLog, base: int, found: StoredHeader) -> bytes | None:
    """A batch of a segment; None if it is damaged and may be the end of the log. Raises DamagedLog."""
    file, position, header = found
    batch = os.pread(file.fileno(), header.size, position)
    first = np.zeros(1, np.int64)
    if len(batch) == header.size and not len(corrupt_batches(batch, first, read_headers(batch, first))):
        return batch
    if log.may_end_at(base, header.base_offset):
        return None
    raise DamagedLog(f"{file.name} is damaged: the batch of offset {header.base_offset} has a wrong CRC.")


def _opened(path: Path) -> Iterator[BinaryIO]:
    """Yields the open file, or nothing if it is deleted (rule 5)."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield file


def _is_abort_marker(batch: bytes) -> bool:
    """Whether a control batch aborts its transaction: its record's key is an i16 version and an i16 type, 0 for an abort."""
    body = bytes(decompress(header_at(batch, 0).attributes & CODEC_MASK, batch[OVERHEAD:]))
    key = int(read_records(BatchRecords(body, [0], [len(body)], [1])).keys.starts[0])
    return body[key + 2 : key + 4] == _ABORT


# ---- time --------------------------------------------------------------------------------------------------


def first_at(log: AnyLog, timestamp_ms: int, end_offset: int) -> int | None:
    """Returns the first offset at or above the log start whose timestamp is at least this; None if there is none.

    Transaction markers count, as in a broker's ListOffsets.
    """
    for base in log.bases[log.segment_of(log.start_offset) :]:
        if base >= end_offset:
            return None
        if log.is_before(base, timestamp_ms):
            continue
        found = _first_in(log, base, timestamp_ms)
        if found is not None:
            return found if found < end_offset else None
    return None


def _first_in(log: AnyLog, base: int, timestamp_ms: int) -> int | None:
    for stored in log.scan(base, timestamp_ms):
        header = stored.header
        if header.max_timestamp < timestamp_ms or header.last_offset < log.start_offset or not header.record_count:
            continue
        if header.is_control:
            return header.last_offset
        batch = _checked_batch(log, base, stored)
        if batch is None:
            return None
        found = _first_of(batch, log.start_offset, timestamp_ms)
        if found is not None:
            return found
    return None


def _first_of(batch: bytes, start_offset: int, timestamp_ms: int) -> int | None:
    table = decode(batch, start_offset=start_offset, columns=("offset", "timestamp"))
    late = np.flatnonzero(table["timestamp"].cast("int64").to_numpy() >= timestamp_ms * 1000)
    return int(table["offset"][int(late[0])].as_py()) if len(late) else None
