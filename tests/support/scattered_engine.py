"""A small engine with all partitions in one file: a second implementation for the engine contract.

FORMAT   one file of entries of all partitions, in the order of their reservation:
             u32 length of the head, u32 length of the payload, u32 CRC-32C of the head;
             the head, as JSON: the partition's name, the kind, and per kind
             records    whether they start a segment; size, base offset, last offset, max timestamp and leader epoch of
                        each batch in the payload
             roll, truncate, reset, trim   the offset
             aborted    the transaction
RULES    1. An entry's head is written at its reservation, its batches later: after a crash a hole in one
            partition is skipped for the others.
         2. A partition's state is in memory, read in one pass over the heads when it is opened.
         3. A read returns one region per batch.
NOT HERE Speed, and reclaiming trimmed space.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from protocol.crc32c import crc32c
from protocol.errors import KafkaError
from protocol.file_region import FileRegion, file_regions
from protocol.primitives import Buffer
from protocol.records import crc_is_valid, parse_header
from storage.config.log_config import LogConfig
from storage.engine import (
    AbortedTransaction,
    BatchInfo,
    EngineSummary,
    EngineView,
    LocatedBatches,
    OnBatch,
    Reservation,
    SegmentInfo,
    SharedLog,
    SyncWork,
)
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import Disk, File

T = TypeVar("T")

_HEAD = Struct(">III")


class Store:
    """The file of all partitions."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self._end = 0
        self._file: File | None = None

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.path, write=True, create=True)
        return self._file

    def engine(self, directory: str, config: LogConfig) -> ScatteredEngine:
        """The engine factory."""
        return ScatteredEngine(self, directory, config)

    def add(self, name: str, kind: str, values: Sequence[Any], payload: int = 0) -> int:
        """Append an entry's head; returns the position of its payload."""
        head = json.dumps([name, kind, values]).encode()
        position = self._end
        self.file.pwrite(_HEAD.pack(len(head), payload, crc32c(head)) + head, position)
        start = position + _HEAD.size + len(head)
        self._end = start + payload
        return start

    def entries(self, name: str) -> Iterator[tuple[str, list[Any], int]]:
        """Kind, values and position of the payload of a partition's entries."""
        data = self.file.pread(self.file.size(), 0)
        self._end = 0
        while len(data) - self._end >= _HEAD.size:
            length, payload, crc = _HEAD.unpack_from(data, self._end)
            start = self._end + _HEAD.size + length
            head = data[start - length : start]
            if not head or crc32c(head) != crc:
                break
            self._end = start + payload
            owner, kind, values = json.loads(head)
            if owner == name:
                yield kind, values, start


class Place(NamedTuple):
    """Where the records of a reservation are stored."""

    position: int
    size: int


class ScatteredEngine:
    """One partition's batches in the shared file."""

    def __init__(self, store: Store, directory: str, config: LogConfig) -> None:
        self._store = store
        self.submit: Submit = run_now
        self.compacted_end = 0
        self.shared_log: SharedLog | None = None
        self._name = directory
        self._config = config
        self._batches: list[BatchInfo] = []
        self._bases: list[int] = [0]
        self._aborted: list[AbortedTransaction] = []
        self._end = 0
        self._flushed = 0
        self._outstanding: dict[Reservation, Place] = {}  # in the order of the reservations
        self._syncing: list[list[int]] = []

    # ---- life --------------------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        for kind, values, position in self._store.entries(self._name):
            self._replay(kind, values, position)
        self._flushed = self._end if recovery_point is None else min(recovery_point, self._end)
        if recovery_point is None or not self._batches:
            return None
        return self._bases[max(bisect_right(self._bases, recovery_point) - 1, 0)]

    def summary(self) -> EngineSummary | None:
        return None

    def stamp(self, summary: EngineSummary) -> str:
        raise NotImplementedError

    def reopen(self, summary: EngineSummary) -> None:
        raise NotImplementedError

    def bytes_to_recover(self, start_offset: int) -> int:
        return sum(batch.size for batch in self._batches if batch.base_offset >= start_offset)

    def recover(self, start_offset: int, on_batch: OnBatch) -> None:
        unchecked = self._from(start_offset)
        del self._batches[len(self._batches) - len(unchecked) :]
        end, self._end = self._end, start_offset
        for batch in unchecked:
            data = self._store.file.pread(batch.size, batch.position)
            if not _is_valid(data, batch):
                self._change("truncate", self._end)
                break
            self._add(batch)
            on_batch(data, 0, parse_header(data))
        else:
            self._end = max(self._end, end)
        self._flushed = min(self._flushed, self._end)

    def close(self, *, sync: bool = False) -> None: ...

    def delete(self) -> None:
        self._store.add(self._name, "reset", [0])

    def register_files(self) -> None: ...

    def unregister_files(self) -> None: ...

    def update_config(self, config: LogConfig) -> None:
        self._config = config

    # ---- append ------------------------------------------------------------------------------------------

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> Reservation:
        active = [batch for batch in self._batches if batch.base_offset >= self._bases[-1]]
        used = sum(batch.size for batch in active) + sum(place.size for place in self._outstanding.values())
        first_time = active[0].max_timestamp if active else -1
        rolled = used > 0 and (
            used + size > self._config.segment_bytes
            or (first_time >= 0 and batches[-1].max_timestamp - first_time > self._config.segment_ms)
        )
        table = [(batch.size, *batch[2:]) for batch in batches]
        position = self._store.add(self._name, "records", [rolled, *table], size)
        reservation = Reservation()
        reservation.batches, reservation.rolled, reservation.takes_snapshot = batches, rolled, rolled
        self._outstanding[reservation] = Place(position, size)
        if rolled:
            self._begin(batches[0].base_offset)
        return reservation

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        self._store.file.pwrite(buffer, self._outstanding[reservation].position)

    def publish(self, reservation: Reservation) -> None:
        first = next(iter(self._outstanding))
        assert first is reservation
        position = self._outstanding.pop(first).position
        for batch in first.batches:
            self._add(batch._replace(position=position + batch.position))

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def end_offset(self) -> int:
        return self._end

    @property
    def segment_count(self) -> int:
        return len(self.segments())

    @property
    def size_bytes(self) -> int:
        return sum(batch.size for batch in self._batches)

    @property
    def flushed_end_offset(self) -> int:
        return self._flushed

    @property
    def recovery_point(self) -> int:
        return self._flushed

    def prepare_append(self) -> None: ...

    def view(self) -> ScatteredEngine:
        return self

    def lookup(self, key: Hashable, find: Callable[[EngineView], T]) -> T:
        return find(self)

    def locate(self, offset: int, max_bytes: int, max_offset: int, *, min_one_batch: bool) -> LocatedBatches:
        regions: list[FileRegion] = []
        size = 0
        end_offset = offset
        batches = self._from(offset)
        for batch in batches:
            if batch.last_offset >= max_offset:
                break
            if size + batch.size > max_bytes and (regions or not min_one_batch):
                break
            regions.append(FileRegion(self._store.file, batch.position, batch.size))
            size += batch.size
            end_offset = batch.last_offset + 1
        return LocatedBatches(tuple(regions), size, end_offset)

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        found = self.locate(offset, max_bytes, max(self._end, offset), min_one_batch=True)
        return b"".join(
            self._store.file.pread(region.length, region.position) for region in file_regions(found.regions)
        )

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        return next((batch.base_offset for batch in self._from(offset) if batch.max_timestamp >= target_ms), None)

    def max_timestamp(self) -> tuple[int, int] | None:
        if not self._batches:
            return None
        latest = max(self._batches, key=lambda batch: batch.max_timestamp)
        return latest.max_timestamp, latest.last_offset

    def segments(self, limit: int | None = None) -> list[SegmentInfo]:
        ends = [*self._bases[1:], self._end]
        return [
            SegmentInfo(base, end, sum(batch.size for batch in self._batches if base <= batch.base_offset < end))
            for base, end in zip(self._bases, ends, strict=True)
        ][:limit]

    def segment_max_timestamp(self, base_offset: int) -> int:
        end = next(segment.end_offset for segment in self.segments() if segment.base_offset == base_offset)
        stamps = [batch.max_timestamp for batch in self._batches if base_offset <= batch.base_offset < end]
        latest = max(stamps, default=-1)
        return latest if latest >= 0 else self._store.disk.modified_ms(self._store.path)

    def timestamp_bound(self, base_offset: int, enough_ms: int) -> int:
        return self.segment_max_timestamp(base_offset)

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        if transaction not in self._aborted:  # recovery tells again what is known
            self._aborted.append(transaction)
            self._store.add(self._name, "aborted", transaction)

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return [a for a in self._aborted if a.last_offset >= start_offset and a.first_offset < end_offset]

    # ---- cutting -----------------------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        if not self.segments()[-1].size:
            return False
        self._change("roll", self._end)
        return True

    def truncate(self, offset: int) -> None:
        if offset < self._end:
            self._change("truncate", offset)

    def reset(self, offset: int) -> None:
        self._change("reset", offset)

    def end_truncation(self) -> None: ...

    def trim(self, offset: int, submit_first: Submit | None = None) -> list[str]:
        if len(self._bases) > 1 and self._bases[1] <= offset:
            self._change("trim", offset)
        return []

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, limit: int | None = None) -> SyncWork:
        self._syncing.append([self._end, self._end])
        return SyncWork(self._end, [self._store.file])

    def mark_shared_flushed(self, end_offset: int) -> None:
        raise NotImplementedError

    def mark_flushed(self, end_offset: int) -> None:
        for number, (promised, counts) in enumerate(self._syncing):
            if promised == end_offset:
                del self._syncing[: number + 1]
                self._flushed = max(self._flushed, counts)
                break

    # ---- inside ------------------------------------------------------------------------------------------

    def _change(self, kind: str, offset: int) -> None:
        self._store.add(self._name, kind, [offset])
        self._replay(kind, [offset])

    def _replay(self, kind: str, values: list[Any], position: int = 0) -> None:
        if kind == "aborted":
            self._aborted.append(AbortedTransaction(*values))
        elif kind == "records":
            is_first, *table = values
            if is_first:
                self._begin(table[0][1])
            for size, *rest in table:
                self._add(BatchInfo(position, size, *rest))
                position += size
        else:
            changes = {"roll": self._begin, "truncate": self._cut, "reset": self._restart, "trim": self._drop}
            changes[kind](values[0])

    def _from(self, offset: int) -> list[BatchInfo]:
        """The batches that reach to an offset or above."""
        return [batch for batch in self._batches if batch.last_offset >= offset]

    def _add(self, batch: BatchInfo) -> None:
        self._batches.append(batch)
        self._end = batch.last_offset + 1

    def _begin(self, base_offset: int) -> None:
        if base_offset > self._bases[-1]:
            self._bases.append(base_offset)

    def _cut(self, offset: int) -> None:
        self._end = min([self._end, offset, *(batch.base_offset for batch in self._from(offset))])
        self._batches = [batch for batch in self._batches if batch.last_offset < self._end]
        while len(self._bases) > 1 and self._bases[-1] > self._end:
            self._bases.pop()
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset < self._end]
        self._limit_flushed()

    def _restart(self, offset: int) -> None:
        self._batches, self._bases, self._aborted = [], [offset], []
        self._end = offset
        self._limit_flushed()

    def _drop(self, offset: int) -> None:
        while len(self._bases) > 1 and self._bases[1] <= offset:
            del self._bases[0]
        start = self._bases[0]
        self._batches = [batch for batch in self._batches if batch.base_offset >= start]
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset >= start]

    def _limit_flushed(self) -> None:
        self._flushed = min(self._flushed, self._end)
        for sync in self._syncing:
            sync[1] = min(sync[1], self._end)


def _is_valid(data: bytes, batch: BatchInfo) -> bool:
    try:
        header = parse_header(data)
    except KafkaError:
        return False
    return header.base_offset == batch.base_offset and len(data) >= header.size and crc_is_valid(data, 0, header)
