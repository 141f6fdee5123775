"""A small engine with all partitions in one file: a second implementation for the engine contract.

FORMAT   one file of entries of all partitions, in the order of their reservation:
             u8 kind, u16 length of the partition's name, u32 length of the body, i64 number, u32 CRC-32C of
             the kind, name, number and batch table, then the name, and per kind
             RECORDS   number: how many batches; a table of (u32 size, i64 base offset, i64 last offset, i64 max
                       timestamp, i32 leader epoch), then the batches
             ROLL, TRUNCATE, RESET, TRIM   number: the offset
             ABORTED   number: 1; a table of one row of four i64
             VOID      abandoned: to be skipped
RULES    1. An entry's head is written at its reservation, its batches later: after a crash a hole in one
            partition is skipped for the others.
         2. A partition's state is in memory, read in one pass over the heads when the file is first needed.
         3. A read returns one region per batch.
NOT HERE Speed, and reclaiming trimmed space.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from struct import Struct

from crc32c import crc32c

from protocol.errors import KafkaError
from protocol.records import FileRegion, crc_is_valid, parse_header
from storage.config.log_config import LogConfig
from storage.engine import (
    AbortedTransaction,
    BatchInfo,
    Buffer,
    Engine,
    LocatedBatches,
    OffsetPosition,
    OnBatch,
    Reservation,
    SegmentInfo,
    SyncWork,
)
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import Disk, File

RECORDS, FIRST_RECORDS, ROLL, TRUNCATE, RESET, TRIM, ABORTED, VOID = range(8)

_HEAD = Struct(">BHIqI")
_BATCH = Struct(">Iqqqi")
_ABORTED = Struct(">qqqq")


class Store:
    """The file and the state of its partitions."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.end = 0
        self.contents: dict[str, list[tuple[int, int, list[BatchInfo] | AbortedTransaction]]] = {}
        self._file: File | None = None
        self._is_walked = False

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.path, write=True, create=True)
        return self._file

    def engine(self, directory: str, config: LogConfig) -> ScatteredEngine:
        """The engine factory."""
        return ScatteredEngine(self, directory, config)

    def add(self, kind: int, name: str, number: int, table: bytes = b"", payload: int = 0) -> tuple[int, int]:
        """Append an entry's head; returns its position and its payload's."""
        encoded = name.encode()
        crc = crc32c(table, crc32c(encoded, crc32c(bytes([kind]) + number.to_bytes(8, "big", signed=True))))
        head = _HEAD.pack(kind, len(encoded), len(table) + payload, number, crc) + encoded + table
        position = self.end
        self.file.pwrite(head, position)
        self.end = position + len(head) + payload
        return position, position + len(head)

    def void(self, position: int) -> None:
        """Mark an entry as abandoned."""
        self.file.pwrite(bytes([VOID]), position)

    def walk(self) -> None:
        """Read the state of all partitions (rule 2)."""
        if self._is_walked:
            return
        self._is_walked = True
        data = memoryview(self.file.pread(self.file.size(), 0))
        while len(data) - self.end >= _HEAD.size:
            kind, name_length, length, number, crc = _HEAD.unpack_from(data, self.end)
            start = self.end + _HEAD.size + name_length
            name = bytes(data[start - name_length : start])
            if start + length > len(data) and kind not in {RECORDS, FIRST_RECORDS}:
                break
            rows = number if kind in {RECORDS, FIRST_RECORDS} else 0
            table_size = rows * _BATCH.size if rows else _ABORTED.size if kind == ABORTED else 0
            table = bytes(data[start : start + table_size])
            sign = bytes([kind]) + number.to_bytes(8, "big", signed=True)
            if kind != VOID:
                if crc32c(table, crc32c(name, crc32c(sign))) != crc:
                    break
                self._learn(kind, name.decode(), number, table, start + table_size)
            self.end = start + length

    def _learn(self, kind: int, name: str, number: int, table: bytes, position: int) -> None:
        content: list[BatchInfo] | AbortedTransaction = []
        if kind == ABORTED:
            content = AbortedTransaction(*_ABORTED.unpack(table))
        elif kind in {RECORDS, FIRST_RECORDS}:
            batches = []
            for size, base, last, timestamp, epoch in _BATCH.iter_unpack(table):
                batches.append(BatchInfo(position, size, base, last, timestamp, epoch))
                position += size
            content = batches
        self.contents.setdefault(name, []).append((kind, number, content))


class ScatteredReservation(Reservation):
    __slots__ = ("entry", "position")

    def __init__(self, size: int, batches: Sequence[BatchInfo], *, rolled: bool, entry: int, position: int) -> None:
        super().__init__(size, batches, rolled=rolled)
        self.entry = entry
        self.position = position


class ScatteredEngine:
    """One partition's batches in the shared file."""

    def __init__(self, store: Store, directory: str, config: LogConfig) -> None:
        self._store = store
        self.submit: Submit = run_now
        self.compacted_end = 0
        self._name = directory
        self._config = config
        self._batches: list[BatchInfo] = []
        self._lasts: list[int] = []  # last offset of each batch
        self._bases: list[int] = [0]
        self._aborted: list[AbortedTransaction] = []
        self._end = 0
        self._flushed = 0
        self._outstanding: deque[ScatteredReservation] = deque()
        self._reserved_bytes = 0
        self._first_times: list[int] = [-1]  # the first max timestamp of each segment
        self._syncing: list[list[int]] = []

    # ---- life --------------------------------------------------------------------------------------------

    def open(self, recovery_point: int | None, names: Sequence[str] | None = None) -> int | None:
        self._store.walk()
        for kind, number, content in self._store.contents.pop(self._name, []):
            self._replay(kind, number, content)
        self._flushed = self._end if recovery_point is None else min(recovery_point, self._end)
        if recovery_point is None or not self._batches:
            return None
        return self._bases[max(bisect_right(self._bases, recovery_point) - 1, 0)]

    def _replay(self, kind: int, number: int, content: list[BatchInfo] | AbortedTransaction) -> None:
        if isinstance(content, AbortedTransaction):
            if content not in self._aborted:
                self._aborted.append(content)
        elif kind in {RECORDS, FIRST_RECORDS}:
            if kind == FIRST_RECORDS:
                self._begin(content[0].base_offset)
            for batch in content:
                self._add(batch)
        elif kind == ROLL:
            self._begin(number)
        elif kind == TRUNCATE:
            self._cut(number)
        elif kind == RESET:
            self._restart(number)
        elif kind == TRIM:
            self._drop(number)

    def bytes_to_recover(self, start_offset: int) -> int:
        return sum(batch.size for batch in self._batches if batch.base_offset >= start_offset)

    def recover(self, start_offset: int, on_batch: OnBatch) -> None:
        slot = bisect_right(self._lasts, start_offset - 1)
        doubted, self._batches[slot:], self._lasts[slot:] = self._batches[slot:], [], []
        bases = self._bases
        end, self._end = self._end, start_offset
        file = self._store.file
        for batch in doubted:
            data = file.pread(batch.size, batch.position)
            try:
                header = parse_header(data)
            except KafkaError:
                break
            if len(data) < header.size or header[:1] != batch[2:3] or not crc_is_valid(data, 0, header):
                break
            self._add(batch)
            on_batch(data, 0, header)
        else:
            self._end = max(self._end, end)
        self._bases = bases
        if self._end < end:
            cut = self._end
            self._store.add(TRUNCATE, self._name, cut)
            self._cut(cut)
        self._flushed = min(self._flushed, self._end)

    def close(self, *, sync: bool = False) -> None:
        """Leave the state to the next engine of the same store; another store reads the file."""
        replay: list[tuple[int, int, list[BatchInfo] | AbortedTransaction]] = [(RESET, self._bases[0], [])]
        bases = self._bases[1:]
        for batch in self._batches:
            while bases and bases[0] <= batch.base_offset:
                replay.append((ROLL, bases.pop(0), []))
            replay.append((RECORDS, 1, [batch]))
        replay += [(ROLL, base, []) for base in bases]
        replay += [(ABORTED, 1, aborted) for aborted in self._aborted]
        self._store.contents[self._name] = replay

    def delete(self) -> None:
        self._store.add(RESET, self._name, 0)

    def register_files(self) -> None: ...

    def unregister_files(self) -> None: ...

    def update_config(self, config: LogConfig) -> None:
        self._config = config

    # ---- append ------------------------------------------------------------------------------------------

    def reserve(self, size: int, batches: Sequence[BatchInfo], wall_ms: int) -> ScatteredReservation:
        active = sum(batch.size for batch in self._batches if batch.base_offset >= self._bases[-1])
        reserved = sum(waiting.size for waiting in self._outstanding)
        first_time = self._first_times[-1]
        rolled = active + reserved > 0 and (
            active + reserved + size > self._config.segment_bytes
            or (first_time >= 0 and batches[-1].max_timestamp - first_time > self._config.segment_ms)
        )
        table = b"".join(_BATCH.pack(batch.size, *batch[2:]) for batch in batches)
        kind = FIRST_RECORDS if rolled else RECORDS
        entry, position = self._store.add(kind, self._name, len(batches), table, size)
        reservation = ScatteredReservation(size, batches, rolled=rolled, entry=entry, position=position)
        self._outstanding.append(reservation)
        if rolled:
            self._begin(batches[0].base_offset)
        return reservation

    def write(self, reservation: Reservation, buffer: Buffer) -> None:
        assert isinstance(reservation, ScatteredReservation)
        self._store.file.pwrite(buffer, reservation.position)

    def publish(self, reservation: Reservation) -> None:
        first = self._outstanding.popleft()
        assert first is reservation
        for batch in first.batches:
            self._add(batch._replace(position=first.position + batch.position))

    def abandon(self, reservation: Reservation) -> None:
        last = None
        while last is not reservation:
            last = self._outstanding.pop()
            self._store.void(last.entry)
            if last.rolled:
                self._bases.pop()
                self._first_times.pop()

    # ---- read --------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def end_offset(self) -> int:
        return self._end

    @property
    def size_bytes(self) -> int:
        return sum(batch.size for batch in self._batches)

    @property
    def flushed_end_offset(self) -> int:
        return self._flushed

    @property
    def recovery_point(self) -> int:
        return self._flushed

    def check_append_ready(self) -> None: ...

    def copy(self) -> ScatteredEngine:
        return self

    def adopt_files(self, copy: Engine) -> None: ...

    def locate(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        *,
        min_one_batch: bool,
        may_block: bool = True,
    ) -> LocatedBatches:
        regions: list[FileRegion] = []
        size = 0
        end_offset = offset
        slot = bisect_right(self._lasts, offset - 1)
        for batch in self._batches[slot:]:
            if batch.last_offset >= max_offset:
                break
            if size + batch.size > max_bytes and (regions or not min_one_batch):
                break
            regions.append(FileRegion(self._store.file, batch.position, batch.size))
            size += batch.size
            end_offset = batch.last_offset + 1
        where = None
        if slot < len(self._batches):
            where = OffsetPosition(0, self._batches[slot].position)
        return LocatedBatches(tuple(regions), size, end_offset, where)

    def read_batches(self, offset: int, max_bytes: int) -> Buffer:
        found = self.locate(offset, max_bytes, max(self._end, offset), min_one_batch=True)
        return b"".join(self._store.file.pread(region.length, region.position) for region in found.regions)

    def find_timestamp(self, target_ms: int, offset: int) -> int | None:
        for batch in self._batches:
            if batch.last_offset >= offset and batch.max_timestamp >= target_ms:
                return batch.base_offset
        return None

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

    # ---- aborted transactions ----------------------------------------------------------------------------

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        if transaction not in self._aborted:  # recovery tells again what is known
            self._aborted.append(transaction)
            self._store.add(ABORTED, self._name, 1, _ABORTED.pack(*transaction))

    def aborted(
        self,
        start_offset: int,
        end_offset: int,
        *,
        may_block: bool = True,
    ) -> list[AbortedTransaction]:
        return [
            aborted
            for aborted in self._aborted
            if aborted.last_offset >= start_offset and aborted.first_offset < end_offset
        ]

    # ---- cutting -----------------------------------------------------------------------------------------

    def roll(self, wall_ms: int) -> bool:
        if not self.segments()[-1].size:
            return False
        self._store.add(ROLL, self._name, self._end)
        self._begin(self._end)
        return True

    def truncate(self, offset: int) -> None:
        if offset < self._end:
            self._store.add(TRUNCATE, self._name, offset)
            self._cut(offset)

    def reset(self, offset: int) -> None:
        self._store.add(RESET, self._name, offset)
        self._restart(offset)

    def trim(self, offset: int, ahead: Submit | None = None) -> list[str]:
        if len(self._bases) > 1 and self._bases[1] <= offset:
            self._store.add(TRIM, self._name, offset)
            self._drop(offset)
        return []

    # ---- durability --------------------------------------------------------------------------------------

    def collect_sync(self, limit: int | None = None) -> SyncWork:
        self._syncing.append([self._end, self._end])
        return SyncWork(self._end, [self._store.file])

    def mark_flushed(self, end_offset: int) -> None:
        for number, (promised, counts) in enumerate(self._syncing):
            if promised == end_offset:
                del self._syncing[: number + 1]
                self._flushed = max(self._flushed, counts)
                break

    # ---- inside ------------------------------------------------------------------------------------------

    def _add(self, batch: BatchInfo) -> None:
        self._batches.append(batch)
        self._lasts.append(batch.last_offset)
        self._end = batch.last_offset + 1
        if self._first_times[-1] < 0:
            self._first_times[-1] = batch.max_timestamp

    def _begin(self, base_offset: int) -> None:
        if base_offset > self._bases[-1]:
            self._bases.append(base_offset)
            self._first_times.append(-1)

    def _cut(self, offset: int) -> None:
        keep = bisect_right(self._lasts, offset - 1)
        dropped = self._batches[keep:]
        self._end = min(self._end, offset, *(batch.base_offset for batch in dropped))
        del self._batches[keep:], self._lasts[keep:]
        while len(self._bases) > 1 and self._bases[-1] > self._end:
            self._bases.pop()
            self._first_times.pop()
        if not any(batch.base_offset >= self._bases[-1] for batch in self._batches):
            self._first_times[-1] = -1
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset < self._end]
        self._limit_flushed()

    def _restart(self, offset: int) -> None:
        self._batches, self._lasts, self._bases, self._aborted = [], [], [offset], []
        self._first_times = [-1]
        self._end = offset
        self._limit_flushed()

    def _drop(self, offset: int) -> None:
        while len(self._bases) > 1 and self._bases[1] <= offset:
            del self._bases[0], self._first_times[0]
        start = self._bases[0]
        kept = [batch for batch in self._batches if batch.base_offset >= start]
        self._batches, self._lasts = kept, [batch.last_offset for batch in kept]
        self._aborted = [aborted for aborted in self._aborted if aborted.last_offset >= start]

    def _limit_flushed(self) -> None:
        self._flushed = min(self._flushed, self._end)
        for sync in self._syncing:
            sync[1] = min(sync[1], self._end)
