"""The commit log of a log directory: one write stream for all its partitions.

FORMAT   directory `commitlog` in the log directory: log files `<20-digit start>.clog` (frames.py), and for each sealed one its
         queue `<20-digit start>.queue` (queue_file.py); `catalog` (catalog.py). A file's start is a multiple of the file size;
         the first frame of a file names the end of the one before.
RULES    1. A write gets its position when it is written, under the lock, so there are no holes and the frames of a slot are in
            the order of its offsets.
         2. The appends of a call, and what precedes them (BIND, proof of what is durable), are one system call.
         3. A failed write leaves the end where it was. Its first frames may be whole: they are truncated, not to be recovered.
         4. A file is created before the appends need it (files_ahead.py).
         5. After an unclean stop no file with frames is appended to again: recovery seals them (recovery.py).
         6. A finished file is sealed once the files before it are: it is synced, then its queue file is written.
         7. `open` and all writes take the lock. `publish` and `complete_append` do not: they run on the thread of the appends.
            Truncations, `drop` and `write_owed` run in any thread. What their frames change in slot and files is changed on
            that thread (`apply_changes`), in their order, before the next append is published or the next file is sealed.
         8. Appends leave a reserve with which a full disk can be cleaned. They begin a file only if half a file of space is
            left, as a file ahead (`release_ballast`) or unused. The last 64th of a file is for frames that delete batches.
         9. A call that gets the lock writes the appends of all calls that wait for it: on a slow disk they share its latency.
            Each of these calls writes what is left of its own appends, which is nothing unless that write failed.
NOT HERE One partition (commit_log_engine.py), the state of a slot (slots.py). Why: docs/decisions/0093-the-commit-log.md
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from operator import attrgetter
from typing import Final

from protocol.primitives import Buffer
from storage.commitlog.catalog import remove_catalog, update_catalog
from storage.commitlog.files_ahead import FILES_AHEAD, FilesAhead
from storage.commitlog.frame_group import FrameGroup
from storage.commitlog.frames import (
    BIND_PAYLOAD,
    CUT_PAYLOAD,
    FILE_HEADER,
    FOLLOWS_PAYLOAD,
    HEAD_SIZE,
    LONG,
    FrameKind,
    batches_head,
    durable_frame,
)
from storage.commitlog.live_bytes import Extent, extents_of
from storage.commitlog.log_file import CachedFile, LogFile, Slice
from storage.commitlog.recovery import Recovered, load
from storage.commitlog.sealing import (
    forget_slices,
    queue_of,
    queue_path,
    read_queue_header,
    record_states,
    seal,
    set_sealed_by,
)
from storage.commitlog.slot_append import SlotAppend, put_back, take_writable
from storage.commitlog.slots import UNBOUND, Cut, Slot, SlotId, SlotNumbers
from storage.commitlog.zeroing import ZeroAhead
from storage.config.config_def import MAX_INT
from storage.engine import Reservation
from storage.io.deferred_file_ops import Submit, run_now
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import read_waiting
from storage.io.file_handle_cache import FileHandleCache
from storage.io.flush_task import FlushTask
from storage.io.path_guard import LockContext

DIRECTORY: Final = "commitlog"
FILE_BYTES: Final = 256 * 1024 * 1024

_log = logging.getLogger("barnabas.storage")

OnFile = Callable[[LogFile], None]

_start = attrgetter("start")
_SLOTS_AT_A_TIME: Final = 4
SLOTS_PER_TURN: Final = 256  # that cleaning records or releases in one turn of the event loop
_MAX_EXTRA: Final = 512  # bytes of the frames that precede one of a slot


def _always() -> bool:
    return True


class CommitLog:
    """The log that all partitions of a log directory share."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        random_bytes: Callable[[int], bytes],
        new_lock: Callable[[], LockContext],
        file_bytes: int = FILE_BYTES,
        open_files: FileHandleCache | None = None,
    ) -> None:
        """Create the object; opens no file. `directory`: the log directory; `new_lock`: creates a mutex."""
        self._disk = disk
        self.directory = f"{directory}/{DIRECTORY}"
        self._random_bytes = random_bytes
        self.file_bytes = file_bytes
        self._reserve = file_bytes // 64  # of each file, for other frames than appends (rule 8)
        self._cache = open_files
        self.lock = new_lock()
        """Held by writes (rule 7)."""
        self._zeros = ZeroAhead(disk, self.lock, file_bytes)
        self._ahead = FilesAhead(disk, self.directory, file_bytes, random_bytes, new_lock)
        self.submit: Submit = run_now
        """Runs file operations that need not run at once: creating files ahead, sealing."""
        self._is_open = False
        self.files: tuple[LogFile, ...] = ()
        """The files with frames, oldest first; replaced when it changes."""
        self._active: LogFile | None = None
        self._append_end = 0  # where the payload of an append in the active file ends at the latest
        self._slots: dict[SlotId, Slot] = {}
        self._numbered: dict[int, Slot] = {}
        self._numbers = SlotNumbers()
        self._durable = 0
        self._proven = 0  # the position of the last DURABLE frame
        self._has_finished = False  # a finished file is not sealed yet
        self._sealed_start = -1  # of the last file that is sealed or being sealed
        self._to_seal: deque[tuple[LogFile, Callable[[], bytes]]] = deque()  # with the contents of their queue files
        self._seal_lock = new_lock()
        self._has_failed = False  # a file could not be sealed
        self._catalog_lock = new_lock()  # held while files are replaced and the catalog is written; taken before `lock`
        self._unused_slices: list[dict[int, Slice]] = []  # of sealed files
        self._waiting: deque[tuple[Reservation, Buffer]] = deque()  # appends of calls that wait for the lock
        self._owed: deque[tuple[Slot, FrameKind, bytes, OnFile]] = deque()  # frames that are not written yet
        self._changes: deque[Callable[[], None]] = deque()  # of slots, by frames that are written (rule 7)

    # ---- open and close ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the log, and recover it after an unclean stop; a no-op if it is open."""
        with self.lock:
            if not self._is_open:
                if not self._disk.exists(self.directory):
                    self._disk.make_dirs(self.directory)
                    self._disk.sync_dir(self.directory.rpartition("/")[0])
                self._adopt(load(self._disk, self.directory, self._cache))
                self._is_open = True

    def _adopt(self, found: Recovered) -> None:
        self.files = tuple(found.files)
        self._ahead.adopt(found.ahead)
        self._slots, self._numbered = found.slots, found.numbered
        self._numbers = SlotNumbers(found.slot_count, found.numbered)
        if found.files:
            self._durable = self._proven = found.files[-1].end
            self._sealed_start = found.files[-1].start

    def close(self) -> None:
        """Seal all files and close them: the next `open` scans no frame."""
        with self.lock:
            self._end_active()
            self._ahead.clear()
        self.seal_finished()

    def _end_active(self) -> None:
        """The active file gets no more frames; the caller holds the lock."""
        if self._active is not None:
            self._active.slot_count = self._numbers.count
            self._active = None
            self._zeros.stop()

    def has(self, slot_id: SlotId) -> bool:
        """Whether the partition has frames here."""
        return slot_id in self._slots

    # ---- cleaning (cleaner.py) ---------------------------------------------------------------------------

    @property
    def sealed_files(self) -> tuple[LogFile, ...]:
        """The sealed files, oldest first; any thread."""
        files = self.files
        return tuple([file for file in files if file.is_sealed])

    def extents(self) -> dict[int, Extent]:
        """What each slot has; any thread. Call it after `sealed_files`."""
        return extents_of(self._numbered)

    def finish_active(self, limit: int = MAX_INT) -> bool:
        """Finish the active file, so that it can be sealed; as `seal_finished`."""
        with self.lock:
            self._end_active()
        return self.seal_finished(limit)

    def new_run(self, path: str, start: int, end: int) -> tuple[bytes, LogFile]:
        """The file id and the object of a run that will be written to `path`; any thread."""
        file_id = self._random_bytes(16)
        return file_id, LogFile(start, file_id, CachedFile(self._disk, path, self._cache), end)

    def replace(self, sources: Sequence[LogFile], run: LogFile, queue: bytes) -> None:
        """A run with its queue file on disk takes the place of neighbouring files; any thread."""
        set_sealed_by(self._disk, run, queue, self._cache)
        with self._catalog_lock, self.lock:
            files = self.files
            first = files.index(sources[0])
            assert files[first : first + len(sources)] == tuple(sources)
            self.files = (*files[:first], run, *files[first + len(sources) :])
        for file in sources:
            file.unregister()
        self._update_catalog()

    def release_replaced(self) -> bool:
        """Stop referring to files in whose place are runs: an open file keeps its space; on the thread of the appends.

        Returns whether the next turn must continue: there are too many slots for one.
        """
        forget_slices(self._unused_slices, self._numbered, SLOTS_PER_TURN)
        if self._unused_slices:
            return True
        for file in self.files:
            file.forget_sealed_previous()
        if self._numbers.has_released:
            self.submit(self._collect_numbers)
        return False

    def _collect_numbers(self) -> None:
        with self.lock:
            self._numbers.collect()

    def sync_written(self) -> None:
        """Make all frames durable that were written before, or are owed; any thread."""
        self.write_owed()
        for file in self.unsynced()[1]:
            file.sync()

    @property
    def usable_bytes(self) -> int:
        """The free bytes of the disk."""
        return self._disk.space(self.directory)[1]

    @property
    def has_reserve(self) -> bool:
        """Whether the reserve is left after the next file is begun (rule 8)."""
        return len(self._ahead) * self.file_bytes + self.usable_bytes >= self.file_bytes * 3 // 2

    @property
    def ballast_bytes(self) -> int:
        """What `release_ballast` frees: a file, if frames that delete batches have space without it (rule 8)."""
        return self.file_bytes if len(self._ahead) > self._kept_ahead else 0

    @property
    def _kept_ahead(self) -> int:
        """The number of files created ahead that `release_ballast` leaves."""
        active = self._active
        has_space = active is not None and active.end + self._reserve // 2 <= active.start + self.file_bytes
        return 0 if has_space else FILES_AHEAD - 1

    def release_ballast(self) -> bool:
        """Free the space of a file that was created ahead, if another one is left; any thread."""
        return self._ahead.delete_last(self._kept_ahead)

    def slot_ids(self) -> list[SlotId]:
        """The partitions with frames here, in the order of their first ones."""
        return [slot.slot_id for slot in sorted(self._slots.values(), key=attrgetter("number"))]

    def slot(self, slot_id: SlotId, topic: str = "") -> Slot:
        """The slot of a partition; a new one is empty and has no number before its first frame.

        `topic`: of a new one, if the partition has no directory.
        """
        return self._slots.get(slot_id) or Slot(slot_id, topic)

    @property
    def slots(self) -> list[Slot]:
        """The slots of all partitions with frames."""
        return list(self._slots.values())

    # ---- writes ------------------------------------------------------------------------------------------

    def write(self, append: SlotAppend, buffer: Buffer) -> None:
        """Write one append."""
        waiting = self._waiting
        waiting.append((append, buffer))
        with self.lock:
            file, slot, unwritten = self._active, append.slot, append.unwritten
            if (
                len(waiting) != 1  # rule 9
                or file is None
                or slot.bound_in != file.start
                or append.state is not None
                or len(unwritten) != 1
                or unwritten[0] is not append
                or file.end + len(buffer) > self._append_end
            ):  # more frames than its own and a DURABLE, or none
                self._write_all(take_writable((*self._take_waiting(), (append, buffer))))
                return
            waiting.clear()
            crc, position, previous_end = file.file_id_crc, file.end, append.previous_end
            durable, proof = self._durable, b""
            if durable > self._proven:  # the first append after a sync
                proof = durable_frame(crc, position, slot.number, previous_end, durable)
                position += len(proof)
            head = batches_head(crc, position, slot.number, previous_end, buffer, append.batches, rolled=append.rolled)
            file.log.get(read_waiting).pwritev((proof + head, buffer), file.end - file.start)
            self._proven = durable
            unwritten.pop(0)  # the thread of the appends may have added others during the call
            append.file, append.position = file, position + HEAD_SIZE
            file.end = position + HEAD_SIZE + len(buffer)
            file.written += 1

    def write_together(self, writes: Sequence[tuple[Reservation, Buffer]]) -> None:
        """Write appends of any slots (`SharedLog`): one system call, or two at the end of a file.

        Each append is completed when it is published or dropped (`complete_append`).
        """
        self._waiting.extend(writes)
        with self.lock:
            self._write_all(take_writable((*self._take_waiting(), *writes)))

    def write_size(self, size: int) -> int:
        """As `SharedLog`: if the active file is nearly full and none is ahead, the write may create one."""
        active = self._active
        has_file = len(self._ahead) or (active is not None and active.end + size + self._reserve <= self._append_end)
        return size if has_file else size + self.file_bytes

    def _take_waiting(self) -> list[tuple[Reservation, Buffer]]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def truncate(self, slot: Slot, cut: Cut) -> None:
        """Append a CUT, which `apply_changes` applies to the slot; any thread."""
        with self.lock:
            file = self._write_one(slot, FrameKind.CUT, slot.end_offset, CUT_PAYLOAD.pack(*cut))
            self._changes.append(partial(slot.cut, file, cut))

    def reset(self, slot: Slot, offset: int) -> None:
        """Append a RESET, likewise."""
        with self.lock:
            file = self._write_one(slot, FrameKind.RESET, slot.end_offset, LONG.pack(offset))
            self._changes.append(partial(slot.reset, file, offset))

    def write_frame(self, slot: Slot, kind: FrameKind, payload: bytes) -> LogFile:
        """Append a frame."""
        with self.lock:
            return self._write_one(slot, kind, slot.end_offset, payload)

    def owe(self, slot: Slot, kind: FrameKind, payload: bytes, change: OnFile) -> None:
        """The next `write_owed` appends a frame, and `apply_changes` then calls `change` with its file."""
        self._owed.append((slot, kind, payload, change))

    def write_owed(self) -> None:
        """Append the frames that are owed; any thread."""
        with self.lock:
            while self._owed:
                slot, kind, payload, change = self._owed[0]
                if not slot.is_dropped:  # else its number may be that of another slot
                    file = self._write_one(slot, kind, slot.end_offset, payload)
                    self._changes.append(partial(change, file))
                self._owed.popleft()

    def drop(self, slot: Slot) -> None:
        """Delete a partition that gets no more appends; a no-op if it was never used, or is deleted. Any thread."""
        with self.lock:
            if self._slots.get(slot.slot_id) is slot:
                file = self._write_one(slot, FrameKind.DROP, slot.end_offset, b"")
                slot.is_dropped = True
                del self._slots[slot.slot_id]
                self._changes.append(partial(self._drop, slot, file))

    def _drop(self, slot: Slot, file: LogFile) -> None:
        slot.drop(file)
        del self._numbered[slot.number]
        self._numbers.release(slot.number, file)

    def apply_changes(self) -> None:
        """Change slots as the frames do that other threads have written; on the thread of the appends (rule 7)."""
        while self._changes:
            self._changes.popleft()()

    def _write_all(self, appends: list[SlotAppend]) -> None:
        written = 0
        try:
            while written < len(appends):
                written = self._write_appends(appends, written)
        finally:
            if written < len(appends):
                put_back(appends[written:])

    def _write_appends(self, appends: list[SlotAppend], first: int) -> int:
        """Write the appends from number `first` on that fit in the active file; returns the number after them."""
        frames = self._begin(appends[first].written_size, is_append=True)
        file, start, limit = frames.file, frames.file.start, self._append_end
        taken: list[SlotAppend] = []
        for append in appends[first:]:
            slot = append.slot
            if taken:
                if frames.end + append.written_size > limit:
                    break  # the file ends
                if slot.bound_in != start:
                    self._precede(frames, slot, append.previous_end)
            elif slot.bound_in != start or frames.durable > self._proven:
                self._precede(frames, slot, append.previous_end)
            frames.add_append(append)
            taken.append(append)
        self._write(frames)
        for append in taken:
            append.file, append.buffer = file, b""
        file.written += len(taken)
        return first + len(taken)

    def _write_one(self, slot: Slot, kind: FrameKind, previous_end: int, payload: bytes) -> LogFile:
        slot.check_not_dropped()
        frames = self._begin(len(payload))
        self._precede(frames, slot, previous_end)
        frames.add(kind, slot.number, previous_end, payload)
        self._write(frames)
        return frames.file

    def _begin(self, length: int, *, is_append: bool = False) -> FrameGroup:
        """The group of frames for one system call, whose first payload has this length."""
        return FrameGroup(self._file_for(HEAD_SIZE + length + _MAX_EXTRA, is_append=is_append), self._durable)

    def _precede(self, frames: FrameGroup, slot: Slot, previous_end: int) -> None:
        """Number a new slot, and add the frames that must precede the next one of this slot (rule 2)."""
        file = frames.file
        frames.preceded.append(slot)
        if slot.number == UNBOUND:
            slot.number = self._numbers.take()
            self._slots[slot.slot_id] = self._numbered[slot.number] = slot
            frames.new_slots.append(slot)
        if not frames.pieces:
            if file.end == file.start + FILE_HEADER.size and len(self.files) > 1:
                previous = self.files[-2]
                payload = FOLLOWS_PAYLOAD.pack(previous.start, previous.end)
                frames.add(FrameKind.FOLLOWS, slot.number, previous_end, payload)
            if frames.durable > self._proven:
                frames.add(FrameKind.DURABLE, slot.number, previous_end, LONG.pack(frames.durable))
        if slot.bound_in != file.start and not slot.is_dropped:
            payload = BIND_PAYLOAD.pack(*slot.slot_id, slot.start_offset) + slot.topic.encode()
            frames.add(FrameKind.BIND, slot.number, previous_end, payload)

    def _write(self, frames: FrameGroup) -> None:
        file = frames.file
        try:
            file.log.get(read_waiting).pwritev(frames.pieces, file.end - file.start)
        except StorageError:
            for slot in reversed(frames.new_slots):
                del self._slots[slot.slot_id], self._numbered[slot.number]
                self._numbers.give_back(slot.number)
                slot.number = UNBOUND
            with suppress(StorageError):  # the disk fails: the error of the write counts
                file.log.get(read_waiting).truncate(file.end - file.start)
            raise
        self._proven = frames.durable
        for slot in frames.new_slots:
            slot.begin = file.start
        for slot in frames.preceded:
            slot.bound_in = file.start
        file.end = frames.end

    # ---- files -------------------------------------------------------------------------------------------

    def _file_for(self, size: int, *, is_append: bool) -> LogFile:
        """The active file, or the next one if these bytes do not fit.

        Raises:
            StorageError: the disk is full, but for the reserve if it is an append (rule 8).
        """
        active, limit = self._active, self.file_bytes - (self._reserve if is_append else 0)
        if active is None:
            return self._next_file(is_append=is_append)
        is_empty = active.end == active.start + FILE_HEADER.size
        if is_empty or active.end + size <= active.start + limit:
            return active
        active.slot_count = self._numbers.count
        return self._next_file(is_append=is_append)

    def _next_file(self, *, is_append: bool) -> LogFile:
        last = self.files[-1] if self.files else None
        start = 0 if last is None else -(-last.end // self.file_bytes) * self.file_bytes
        self._ahead.skip_to(start)
        if is_append and last is not None and not self.has_reserve:
            raise StorageError("write to", self.directory, OSError(ENOSPC, os.strerror(ENOSPC)))
        unused = self._ahead.take(start)
        cached = CachedFile(self._disk, unused.handle.path, self._cache, unused.handle)
        file = LogFile(start, unused.file_id, cached, start + FILE_HEADER.size)
        file.previous = last
        self._has_finished = last is not None
        self._append_end = start + self.file_bytes - self._reserve - _MAX_EXTRA - HEAD_SIZE
        self.files, self._active = (*self.files, file), file
        self._zeros.stop()
        self.submit(self._ahead.refill)
        return file

    # ---- sealing -----------------------------------------------------------------------------------------

    def complete_append(self, file: LogFile) -> None:
        """Count an append in this file that was published or dropped."""
        file.completed += 1
        if self._has_finished:
            self.seal_finished(_SLOTS_AT_A_TIME)
        elif self._unused_slices:
            forget_slices(self._unused_slices, self._numbered, _SLOTS_AT_A_TIME)

    def seal_finished(self, limit: int = MAX_INT) -> bool:
        """Seal the files that get no more frames, oldest first (rule 6); whether `limit` slots were too few."""
        is_limited = False
        self._has_finished = False
        active, files = self._active, self.files  # before the changes: another thread may finish the file meanwhile
        self.apply_changes()
        first = bisect_right(files, self._sealed_start, key=_start)
        for file in files[first:]:
            if file is active:
                break
            is_limited = not file.has_pending_appends and not record_states(file, self._numbered, limit)
            if file.has_pending_appends or is_limited:
                self._has_finished = True
                break
            self._sealed_start = file.start
            self._to_seal.append((file, queue_of(file, self._numbered)))
            self.submit(self._seal_in_order)
        forget_slices(self._unused_slices, self._numbered, limit)
        return is_limited

    def _seal_in_order(self) -> None:
        """Seal the finished files; after a failed sync none, since a later sync might succeed without the data."""
        with self._seal_lock:
            while self._to_seal and not self._has_failed:
                file, queue = self._to_seal[0]
                try:
                    self._unused_slices.append(seal(self._disk, file, queue(), self._cache))
                except StorageError as error:
                    self._has_failed = not error.is_full
                    raise
                self._to_seal.popleft()
            if not self._has_failed:
                self._update_catalog()

    def _update_catalog(self) -> None:
        """Write the catalog of the sealed files."""
        with self._catalog_lock:
            try:
                update_catalog(self._disk, self.directory, self.sealed_files)
            except StorageError as error:
                if not error.is_full:
                    raise
                _log.warning("%s The next start takes longer", error)

    def check_queues(self) -> Iterator[int]:
        """Check queue files of which the start has read only the header, one a step; yields 0. Any thread."""
        for file in self.sealed_files:
            if not file.is_checked:
                file.is_checked = True
                is_whole = read_queue_header(self._disk, file.path, file.start, None) is not None
                if not is_whole and any(one is file for one in self.files):  # else a run has replaced it
                    _log.error("%s is damaged; the next start makes it again from the log file", queue_path(file.path))
                    with self._catalog_lock:
                        remove_catalog(self._disk, self.directory)
                yield 0

    # ---- durability --------------------------------------------------------------------------------------

    def unsynced(self) -> tuple[int, list[File]]:
        """The end of the log, and the files to sync so that all before it is durable."""
        unsynced: list[File] = []
        files = self.files
        for file in reversed(files):
            if file.end <= self._durable or file.is_sealed:
                break
            unsynced.append(file.log.get(read_waiting))
        return files[-1].end if files else 0, unsynced

    def flush_task(self) -> FlushTask:
        """The task of `SharedLog`; a failure always counts: this log is never deleted."""
        position, files = self.unsynced()
        return FlushTask(self._disk, files, _always, end_offset=position)

    def begin_round(self) -> FlushTask:
        """As `SharedLog`: write zeros ahead for the next rounds."""
        active = self._active
        if active is not None and self._zeros.is_due(active):
            self.submit(self._zeros.write)
        return self.flush_task()

    def end_round(self, task: FlushTask) -> None:
        """As `SharedLog`."""
        self.mark_durable(task.end_offset)

    def sync(self) -> None:
        """Make everything that is written durable now."""
        position, files = self.unsynced()
        for file in files:
            file.sync()
        self.mark_durable(position)

    def mark_durable(self, position: int) -> None:
        """All before this position is durable."""
        self._durable = max(self._durable, position)
