"""A run: one file that replaces neighbouring sealed files and contains only their live batches.

FORMAT   `<20-digit start>-<4-digit generation>.clog` and its `.queue`, as those of a sealed file. The start is that of the last
         file that the run replaces. The generation is higher than theirs; a file that was written by appends has 0 and no
         suffix. Frames (frames.py): RUN; a STATE for each slot with frames in the replaced files, as it was at their end;
         then BATCHES, by slot.
RULES    1. A run has the place of the last replaced file: cuts and resets in later files apply to it, earlier ones are applied
            when it is written. FOLLOWS of the next file names its start, and the end in its RUN frame.
         2. It contains whatever a start needs of the replaced files, so these can be removed. One without live batches is
            written when all replaced files are dead.
         3. The batches of a slot touch each other, up to `FRAME_BYTES`.
         4. Each copied frame is checked: its own CRC and those of all its batches. A damaged one ends the rewriting.
         5. The queue file is made from the written run, so all of it is read and checked once more. The run replaces its
            sources when the queue file is renamed into place: both are durable then, and so is all that made batches dead.
         6. Of the sources, the one with the start of the run is removed first, durably. A start that finds a run without a
            valid queue file therefore knows: with a lower generation of that start, all sources exist and the run is removed;
            without, the queue file is made again.
         7. A settled run replaces more files than cleaning would, for readers: a slot's batches of all these files touch. A run
            with a settled source is settled.
NOT HERE Which files (run_choice.py), when (cleaner.py), starting with runs (run_recovery.py).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.crc32c import crc32c
from protocol.primitives import Buffer
from protocol.records import NO_TIMESTAMP
from storage.commitlog.frames import (
    FILE_HEADER,
    HEAD,
    HEAD_SIZE,
    LONG,
    MAGIC,
    RUN_PAYLOAD,
    SETTLED,
    Frame,
    FrameKind,
    FrameWindow,
    batches_head,
    file_header,
    frame_at,
    frame_head,
    parse_file_header,
    scan,
)
from storage.commitlog.live_bytes import Extent
from storage.commitlog.queue_file import (
    ENTRY,
    Entry,
    QueueRun,
    Row,
    build_queue,
    parse_queue,
    queue_run,
    read_rows,
    unpack_entries,
)
from storage.commitlog.slots import packed_json, states_in
from storage.engine import BatchInfo
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import read_waiting

FRAME_BYTES: Final = 4 << 20
_STEP_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """A sealed file to be replaced."""

    path: str
    queue_path: str
    start: int
    end: int
    first: int


class DamagedSource(Exception):
    """A source cannot be copied."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {why}")
        self.path = path


class _SlotPart(NamedTuple):
    """The entries of a slot in one source, and which of them are live."""

    source: Source
    run: QueueRun
    live: range


class RunWriter:
    """Writes the file of a run; the caller runs the steps in any thread."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        file_id: bytes,
        sources: Sequence[Source],
        extents: Mapping[int, Extent],
        *,
        is_settled: bool,
    ) -> None:
        """`sources`: neighbours, oldest first; `extents`: of all slots, not older than the sources."""
        self._disk = disk
        self._sources = sources
        self._extents = extents
        self._path = path
        self._file_id = file_id
        self._file_id_crc = crc32c(file_id)
        self._start = sources[-1].start
        self._flags = SETTLED if is_settled else 0
        self._file: File | None = None
        self._windows: dict[str, tuple[FrameWindow, int]] = {}
        self._pieces: list[Buffer] = []
        self._at = 0
        self._written = 0
        self._ends: list[int] = []
        self._states: dict[int, bytes] = {}
        self._live: dict[int, list[_SlotPart]] = {}

    def steps(self) -> Iterator[int]:
        """Write the file and sync it; yields the number of bytes written in a step.

        Raises:
            DamagedSource: a frame to be copied is invalid.
        """
        for source in self._sources:
            self._read_queue(source)
        self._file = self._disk.open(self._path, write=True, create=True)
        self._file.truncate(0)
        self._add([file_header(self._file_id, self._start)])
        self._add_frame(FrameKind.RUN, 0, self._run_payload(), self._flags)
        for number in sorted(self._states):
            self._add_frame(FrameKind.STATE, number, self._states[number])
        for number in sorted(self._live):
            yield from self._copy_slot(number)
        written = self._flush()
        self._file.truncate(self._at)
        self._file.sync()
        self._disk.sync_dir(self._path.rpartition("/")[0])
        yield written

    # ---- what is live ------------------------------------------------------------------------------------

    def _run_payload(self) -> bytes:
        ends = b"".join([LONG.pack(end) for end in self._ends])
        return RUN_PAYLOAD.pack(self._sources[0].first, self._sources[-1].end) + ends

    def _read_queue(self, source: Source) -> None:
        """Take the rows, live entries and states of a source; those of later ones replace them."""
        found = parse_queue(self._disk.read(source.queue_path), source.start)
        if found is None:
            raise DamagedSource(source.path, 0, "its queue file is invalid")
        header, states = found
        for state in states_in(states):
            self._states[state[0]] = packed_json(state)
        queue = self._disk.open(source.queue_path, write=False)
        self._ends = []
        for number, row in enumerate(read_rows(queue, header.slot_count, read_waiting)):
            self._ends.append(row.end_offset)
            extent = self._extents.get(number)
            if not row.entry_count or extent is None:
                continue
            run = queue_run(queue, header.slot_count, row, read_waiting)
            live = extent.live_range(source.start, row, run)
            if live:
                self._live.setdefault(number, []).append(_SlotPart(source, run, live))

    # ---- copying -----------------------------------------------------------------------------------------

    def _copy_slot(self, number: int) -> Iterator[int]:
        batches: list[BatchInfo] = []
        pieces: list[bytes] = []
        size = 0
        for part in self._live[number]:
            for info, data in self._live_batches(number, part):
                if size + info.size > FRAME_BYTES and batches:
                    self._add_batches(number, batches, pieces)
                    batches, pieces, size = [], [], 0
                batches.append(info._replace(position=size))
                pieces.append(data)
                size += info.size
                if self._at - self._written >= _STEP_BYTES:
                    yield self._flush()
        self._add_batches(number, batches, pieces)
        if self._at - self._written >= _STEP_BYTES:
            yield self._flush()

    def _live_batches(self, number: int, part: _SlotPart) -> Iterator[tuple[BatchInfo, bytes]]:
        """The live batches in one source; the frames that contain them are checked (rule 4)."""
        source, live, entries = part.source, part.live, unpack_entries(part.run.get(0, part.run.count))
        window, file_id_crc = self._window(source)
        for first, end in _frames_of(entries):
            wanted = entries[max(first, live.start) : min(end, live.stop)]
            if not wanted:
                continue
            head = entries[first].position - HEAD_SIZE
            window.step = entries[end - 1].position + entries[end - 1].size - head
            infos = _infos(frame_at(window, file_id_crc, source.start, head), number, source.start)
            for entry in wanted:
                info = infos.get(entry.position)
                if info is None or (info.size, info.last_offset) != (entry.size, entry.last_offset):
                    raise DamagedSource(source.path, entry.position, f"a frame of slot {number} is invalid")
                yield info, bytes(window.get(entry.position, entry.size))

    def _window(self, source: Source) -> tuple[FrameWindow, int]:
        known = self._windows.get(source.path)
        if known is None:
            file = self._disk.open(source.path, write=False)
            file_id = parse_file_header(file.pread(FILE_HEADER.size, 0), source.start)
            if file_id is None:
                raise DamagedSource(source.path, 0, "its header is invalid")
            known = self._windows[source.path] = FrameWindow(file, file.size()), crc32c(file_id)
        return known

    # ---- writing -----------------------------------------------------------------------------------------

    def _add_batches(self, number: int, batches: list[BatchInfo], pieces: list[bytes]) -> None:
        if batches:
            payload, position = b"".join(pieces), self._start + self._at
            previous_end = batches[0].base_offset
            head = batches_head(self._file_id_crc, position, number, previous_end, payload, batches, rolled=False)
            self._add([head, payload])

    def _add_frame(self, kind: FrameKind, slot: int, payload: bytes, flags: int = 0) -> None:
        """Add a frame without batches."""
        position = self._start + self._at
        head = frame_head(self._file_id_crc, position, kind, slot, 0, len(payload), payload, flags=flags)
        self._add([head, payload])

    def _add(self, pieces: list[Buffer]) -> None:
        self._pieces += pieces
        self._at += sum(map(len, pieces))

    def _flush(self) -> int:
        assert self._file is not None
        size = self._at - self._written
        self._file.pwritev(self._pieces, self._written)
        self._pieces, self._written = [], self._at
        return size


def _frames_of(entries: list[Entry]) -> Iterator[tuple[int, int]]:
    """The entries of each frame, as ranges: the batches of a frame touch, and a head precedes each frame."""
    first = 0
    for number in range(1, len(entries) + 1):
        before = entries[number - 1]
        if number == len(entries) or before.position + before.size != entries[number].position:
            yield first, number
            first = number


def _infos(frame: Frame | None, slot: int, start: int) -> dict[int, BatchInfo]:
    """The batches of a frame by their position in the file; empty if it is invalid or another slot's."""
    if frame is None or frame.kind != FrameKind.BATCHES or frame.slot != slot:
        return {}
    return {frame.position - start + info.position: info for info in frame.batches}


# ---- the queue file ------------------------------------------------------------------------------------------


class RunQueue(NamedTuple):
    """The queue file of a run, made from the run."""

    data: bytes
    lost: list[tuple[int, int]]
    """Invalid ranges of the run: begin and end in the file."""


def is_settled_run(disk: Disk, path: str) -> bool:
    """Whether a run was settled; as its first frame says, which is not checked here."""
    head = disk.open(path, write=False).pread(HEAD_SIZE, FILE_HEADER.size)
    return len(head) == HEAD_SIZE and HEAD.unpack(head)[:3] == (MAGIC, FrameKind.RUN, SETTLED)


def run_queue(disk: Disk, path: str, start: int) -> RunQueue:
    """Make the queue file of a run, from all frames that are valid.

    Raises:
        StorageError: the file is not the log file with this start.
    """
    steps = run_queue_steps(disk, path, start)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: RunQueue = end.value
            return found


def run_queue_steps(disk: Disk, path: str, start: int) -> Generator[int, None, RunQueue]:
    """The same in steps; yields the number of bytes read in each."""
    file = disk.open(path, write=False)
    file_id, size = parse_file_header(file.pread(FILE_HEADER.size, 0), start), file.size()
    if file_id is None:
        raise StorageError("read the header of", path, OSError(0, "it is not a file of this log"))
    first, end = start, start + size
    ends: list[int] = []
    states: list[bytes] = []
    entries: dict[int, bytearray] = {}
    lost: list[tuple[int, int]] = []
    done = 0
    for frame in scan(file, file_id, start, size):
        if frame.end - start - done >= _STEP_BYTES:
            yield frame.end - start - done
            done = frame.end - start
        if not isinstance(frame, Frame):
            lost.append((frame.start - start, frame.end - start))
        elif frame.kind == FrameKind.RUN:
            first, end = RUN_PAYLOAD.unpack_from(frame.payload)
            ends = [value for (value,) in LONG.iter_unpack(frame.payload[RUN_PAYLOAD.size :])]
        elif frame.kind == FrameKind.STATE:
            states.append(bytes(frame.payload))
        elif frame.kind == FrameKind.BATCHES:
            packed, at = entries.setdefault(frame.slot, bytearray()), frame.position - start
            for info in frame.batches:
                packed += ENTRY.pack(at + info.position, info.size, info.last_offset, info.max_timestamp)
    rows = _rows(ends or _ends_of(states), entries)
    packed_entries = [bytes(entries[number]) for number in sorted(entries) if number < len(rows)]
    return RunQueue(build_queue(start, end, rows, packed_entries, b"[%s]" % b",".join(states), first=first), lost)


def _ends_of(states: list[bytes]) -> list[int]:
    """The end offsets in states, where the RUN frame is lost."""
    ends: dict[int, int] = {}
    for number, *rest in map(json.loads, states):
        ends[number] = rest[4] if rest else 0
    return [ends.get(number, 0) for number in range(max(ends, default=-1) + 1)]


def _rows(ends: list[int], packed: Mapping[int, bytearray]) -> list[Row]:
    rows: list[Row] = []
    first = 0
    for number, end_offset in enumerate(ends):
        entries = unpack_entries(packed.get(number, b""))
        greatest = max([entry.max_timestamp for entry in entries], default=NO_TIMESTAMP)
        rows.append(Row(end_offset, greatest, first, len(entries), sum([entry.size for entry in entries])))
        first += len(entries)
    return rows
