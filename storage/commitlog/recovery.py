"""Opening a commit log: the state of all slots, from queue files and frames.

RULES    1. A file with a valid queue file was durable when that was written: its frames are not read (their first read
            checks them: frame_check.py), and its states only if the catalog does not cover them (catalog.py).
         2. Other files are scanned. An invalid range behind everything that is proven durable (by a DURABLE frame after it, by
            the queue file of a file that lost its end, or by a later sealed file) ends the log: the rest was never durable and
            is removed. An invalid range before that is damage: the log continues after it, and a slot that lost a frame there
            ends before the loss (`_Replay.apply`).
         3. A file whose first frame does not name the end of the file before it follows a loss: the same rule. The file
            before it may also be missing, which is no loss: names are durable before the first frame.
         4. A partition of which only a BIND is left had no durable record, and has no slot: no queue file has its state, so the
            next start would not have one either.
         5. All scanned files are sealed, without the zeros behind their last frame; they keep the time of their last write. An
            unsealed file without frames is used for later appends, if no file with frames follows. On a nearly full disk those
            files are removed first: without their space a start could not seal the others.
NOT HERE The batches of one partition (storage/log/recovery.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from storage.commitlog.catalog import (
    Catalog,
    header_of_queue,
    packed_states,
    read_catalog,
    remove_catalog,
    slots_in,
    write_catalog,
)
from storage.commitlog.frames import (
    ABORTED_PAYLOAD,
    CUT_PAYLOAD,
    FILE_HEADER,
    FOLLOWS_PAYLOAD,
    LONG,
    ROLLED,
    Frame,
    FrameKind,
    InvalidRange,
    parse_bind,
    parse_file_header,
    scan,
)
from storage.commitlog.log_file import CachedFile, LogFile, UnusedFile, name_at
from storage.commitlog.queue_file import QueueHeader, parse_queue
from storage.commitlog.run_recovery import log_paths, partitions_in
from storage.commitlog.sealing import (
    forget_slices,
    has_all_batches,
    queue_of,
    queue_path,
    read_queue_header,
    seal,
    set_sealed,
)
from storage.commitlog.slot_reader import SlotReader
from storage.commitlog.slots import NO_FILE, Cut, Slot, SlotId, slot_id_of, slot_text
from storage.engine import AbortedTransaction
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import read_waiting
from storage.io.file_handle_cache import FileHandleCache

_log = logging.getLogger("barnabas.storage")

_CHECKED_BYTES: Final = 256 << 20
"""The last queue files up to this size are checked as a whole, the others in the background (`CommitLog.check_queues`)."""
_FILES_AFTER_CATALOG: Final = 8
"""A start that reads the states of more files renews the catalog."""
_NEEDED_BYTES: Final = 16 << 20
"""With less free space the unused files are removed (rule 5)."""


@dataclass(slots=True)
class Recovered:
    """A loaded log."""

    files: list[LogFile] = field(default_factory=list)
    """With frames, oldest first, all sealed."""
    ahead: list[UnusedFile] = field(default_factory=list)
    slots: dict[SlotId, Slot] = field(default_factory=dict)
    numbered: dict[int, Slot] = field(default_factory=dict)
    slot_count: int = 0

    def bind(self, number: int, slot_id: SlotId, topic: str = "") -> Slot:
        """The slot with this number."""
        slot = self.numbered.get(number)
        if slot is not None and slot.slot_id != slot_id:  # its DROP is damaged, or a run has the next slot's state only
            self.drop(number)
            slot = None
        if slot is None:
            slot = Slot(slot_id, topic)
            slot.number = number
            self.add(slot)
        return slot

    def add(self, slot: Slot) -> None:
        """Add a slot with a number."""
        self.slots[slot.slot_id] = self.numbered[slot.number] = slot
        self.slot_count = max(self.slot_count, slot.number + 1)

    def drop(self, number: int) -> Slot | None:
        """Remove a deleted partition's slot; it may have been created again with a lower number, whose state is read first."""
        slot = self.numbered.pop(number, None)
        if slot is not None and self.slots.get(slot.slot_id) is slot:
            del self.slots[slot.slot_id]
        return slot


def load(disk: Disk, directory: str, cache: FileHandleCache | None) -> Recovered:
    """Load the log in a directory; repairs it after an unclean stop."""
    return _Loader(disk, directory, cache).load()


class _Loader:
    def __init__(self, disk: Disk, directory: str, cache: FileHandleCache | None) -> None:
        self._disk = disk
        self._directory = directory
        self._cache = cache
        self._found = Recovered()
        self._proof: int | None = None
        self._paths: dict[int, str] = {}  # of all files, by start
        self._catalog = read_catalog(disk, directory)
        self._covered: dict[int, QueueHeader] = {}  # by start, the files that the catalog covers
        self._unchecked: set[int] = set()  # those of which only the header was read
        self._sealed_end = 0  # of the last file that lost its end, from its queue file
        self._sealed_states: list[list[object]] = []  # the same

    def load(self) -> Recovered:
        found = self._found
        self._paths = log_paths(self._disk, self._directory, self._catalog.files)
        self._covered = self._find_covered()
        if not self._covered and self._catalog.files:
            self._paths = log_paths(self._disk, self._directory, {})
        self._make_space()
        starts = list(self._paths)
        for number, start in enumerate(starts):
            file = self._open(start)
            if file is None:
                continue
            if found.files:
                file.previous = found.files[-1]
            if start in self._covered:
                self._take_covered(file)
            elif not self._take_queue(file) and not self._replay(file, starts[number + 1 :]):
                self._remove(starts[number + 1 :])
                break
        for slot in list(found.numbered.values()):
            if slot.last_file == NO_FILE:
                found.drop(slot.number)  # only its BIND was durable: no queue file has its state
        if len(found.files) > len(self._covered) + _FILES_AFTER_CATALOG or not self._covered:
            self._renew_catalog()
        return found

    def _make_space(self) -> None:
        """Remove unused files, the last one first, while the disk is nearly full (rule 5)."""
        disk = self._disk
        for start, path in reversed(list(self._paths.items())):
            is_unused = disk.size(path) == FILE_HEADER.size and not disk.exists(queue_path(path))
            if not is_unused or disk.space(self._directory)[1] >= _NEEDED_BYTES:
                break
            disk.unlink(path)
            del self._paths[start]

    # ---- the catalog -------------------------------------------------------------------------------------

    def _find_covered(self) -> dict[int, QueueHeader]:
        """The files up to the last one of the catalog; empty if that is not usable (catalog.py rule 2)."""
        catalog, found = self._catalog, dict[int, QueueHeader]()
        last = catalog.last
        if last is None or not self._paths.get(last.start, "").endswith(f"/{last}"):
            return {}
        budget = _CHECKED_BYTES
        for start, path in reversed(self._paths.items()):
            if start <= last.start:
                known = catalog.files.get(name_at(path))
                header = read_queue_header(self._disk, path, start, known if budget < 0 else None)
                if header is None:
                    return {}
                budget -= header.file_size
                found[start] = header
                if budget < 0:
                    self._unchecked.add(start)
        is_readable = _file_id(self._disk.open(self._paths[last.start], write=False), last.start) is not None
        return found if is_readable and found[last.start].packed == catalog.files[last] else {}

    def _take_covered(self, file: LogFile) -> None:
        header = self._covered[file.start]
        self._take_sealed(file, header)
        file.is_checked = file.start not in self._unchecked
        last = self._catalog.last
        if last is not None and file.start == last.start:
            for slot in slots_in(self._catalog.states):
                slot.last_file = file.start
                self._found.add(slot)

    def _renew_catalog(self) -> None:
        """Replace a catalog that is not usable or old."""
        files = {name_at(file.path): header_of_queue(file) for file in self._found.files}
        try:
            if files:
                states = packed_states(self._found.numbered.values())
                write_catalog(self._disk, self._directory, Catalog(files, states))
            elif self._catalog.files:
                remove_catalog(self._disk, self._directory)
        except StorageError as error:
            if not error.is_full:
                raise
            _log.warning("%s The next start takes longer", error)
            remove_catalog(self._disk, self._directory)

    def _open(self, start: int) -> LogFile | None:
        """The log file; None if it has no frames, or its header is invalid."""
        path = self._paths[start]
        handle = self._disk.open(path, write=True)
        file_id = _file_id(handle, start)
        size = handle.size()
        if file_id is None:
            is_sealed = self._disk.exists(queue_path(path))
            if size <= FILE_HEADER.size and not is_sealed:
                _log.warning("%s has no header and no frames: its creation was interrupted, or it was emptied", path)
                return None
            if read_queue_header(self._disk, path, start, None) is None:
                lost = partitions_in(self._disk, path)
                _log.error("%s has no valid header: the records of %s in it are lost", path, lost)
                return None
            _log.warning("%s has no valid header; its batches are read by its queue file", path)
            file_id = b""
        if size == FILE_HEADER.size and not self._disk.exists(queue_path(path)):
            self._found.ahead.append(UnusedFile(start, file_id, handle))
            return None
        return LogFile(start, file_id, CachedFile(self._disk, path, self._cache, handle), start + size)

    def _take_queue(self, file: LogFile) -> bool:
        """Load the states of a sealed file."""
        path = queue_path(file.path)
        if not self._disk.exists(path):
            return False
        found = parse_queue(self._disk.read(path), file.start)
        if found is None:
            _log.warning("%s is invalid; it is made again from the log file", path)
            return False
        header, states = found
        if not has_all_batches(self._disk, file.path, header):
            _log.warning("%s has lost its end: %d bytes of it were sealed", file.path, header.end - file.start)
            self._sealed_end, self._sealed_states = header.end, json.loads(states)
            return False
        for state in json.loads(states):
            self._restore(file, state)
        self._take_sealed(file, header)
        return True

    def _take_sealed(self, file: LogFile, header: QueueHeader) -> None:
        file.end, file.is_verified = header.end, False
        self._found.slot_count = max(self._found.slot_count, header.slot_count)
        set_sealed(self._disk, file, header, self._cache)
        file.log.close()
        self._add(file)

    def _restore(self, file: LogFile, state: list[object]) -> None:
        number = state[0]
        assert isinstance(number, int)
        if len(state) == 1:
            self._found.drop(number)
            return
        slot = self._found.bind(number, slot_id_of(state))
        slot.restore(state)
        slot.last_file = file.start

    def _add(self, file: LogFile) -> None:
        self._found.files.append(file)
        for unused in self._found.ahead:  # their starts are before this file
            self._disk.unlink(unused.handle.path)
        self._found.ahead.clear()

    # ---- scan --------------------------------------------------------------------------------------------

    def _replay(self, file: LogFile, later: list[int]) -> bool:
        """Apply the frames of a file and seal it; False if the log ends in it."""
        file_id, handle, size = self._id_of(file), file.log.get(read_waiting), file.end - file.start
        written_ms = handle.modified_ms()
        frames = scan(handle, file_id, file.start, size)
        first = next(frames, None)
        if self._is_after_loss(first) and not self._is_damage(file.start, file, later):
            self._remove([file.start, *later])
            return False
        self._add(file)
        replay = _Replay(self._found, file)
        is_whole, file.end = True, file.start + FILE_HEADER.size
        for frame in chain([] if first is None else [first], frames):
            file.end = frame.end
            if isinstance(frame, Frame):
                replay.apply(frame)
            elif self._is_damage(frame.start, file, later):
                _log.warning(
                    "%s is damaged from byte %d to %d", file.path, frame.start - file.start, frame.end - file.start
                )
            else:
                self._truncate(file, frame.start)
                is_whole = False
                break
        for text in replay.broken.values():
            _log.warning("%s", text)
        self._report_lost_end(file, replay)
        file.slot_count = self._found.slot_count
        slices = seal(self._disk, file, queue_of(file, self._found.numbered)(), self._cache)
        self._disk.set_modified_ms(file.path, written_ms)
        forget_slices([slices], self._found.numbered)
        return is_whole

    def _report_lost_end(self, file: LogFile, replay: _Replay) -> None:
        """Name the partitions that lost records with the end of a sealed file."""
        for state in self._sealed_states:
            if len(state) == 1:
                continue  # it was deleted
            sealed = Slot(slot_id_of(state))
            sealed.restore(state)
            found = self._found.slots.get(sealed.slot_id)
            end_offset = sealed.start_offset if found is None else found.end_offset
            if end_offset < sealed.end_offset and sealed.number not in replay.broken:
                _log.warning(
                    "%s lost its records from offset %d to %d: they were in the lost end of %s",
                    slot_text(sealed.slot_id, sealed.topic), end_offset, sealed.end_offset - 1, file.path,
                )  # fmt: skip
        self._sealed_states = []

    def _id_of(self, file: LogFile) -> bytes:
        file_id = _file_id(file.log.get(read_waiting), file.start)
        assert file_id is not None
        return file_id

    def _is_after_loss(self, first: Frame | InvalidRange | None) -> bool:
        """Whether the end of the previous file is lost (rule 3)."""
        files = self._found.files
        if not isinstance(first, Frame) or first.kind != FrameKind.FOLLOWS:
            return bool(files) or not isinstance(first, Frame)
        start, end = FOLLOWS_PAYLOAD.unpack(first.payload)
        if files and files[-1].start >= start:
            return start != files[-1].start or end not in {files[-1].end, self._sealed_end}
        return start in self._paths  # it has no frames; if it does not exist, it was deleted

    def _is_damage(self, position: int, file: LogFile, later: list[int]) -> bool:
        """Whether the bytes at this position were durable (rule 2)."""
        if self._proof is None:
            self._proof = max(self._proofs(file, later), default=0)
        return position < max(self._proof, self._sealed_end)

    def _proofs(self, file: LogFile, later: list[int]) -> Iterator[int]:
        """Positions before which everything was durable."""
        for start in [file.start, *later]:
            path = self._paths[start]
            if start != file.start and self._disk.exists(queue_path(path)):
                yield start
            handle = self._disk.open(path, write=False)
            file_id = _file_id(handle, start)
            if file_id is not None:
                for frame in scan(handle, file_id, start, handle.size()):
                    if isinstance(frame, Frame) and frame.kind == FrameKind.DURABLE:
                        yield LONG.unpack(frame.payload)[0]

    def _truncate(self, file: LogFile, end: int) -> None:
        _log.warning(
            "%s ends at byte %d; %d bytes after it were not durable", file.path, end - file.start, file.end - end
        )
        handle = file.log.get(read_waiting)
        handle.truncate(end - file.start)
        handle.sync()
        file.end = end

    def _remove(self, starts: list[int]) -> None:
        """Remove the files behind the end of the log, the last one first: a crash leaves no gap before a file (rule 3)."""
        self._found.ahead.clear()
        for start in reversed(starts):
            path = self._paths[start]
            self._disk.unlink(queue_path(path), missing_ok=True)
            self._disk.unlink(path, missing_ok=True)
            self._disk.sync_dir(self._directory)


def _file_id(file: File, start: int) -> bytes | None:
    """The id of a log file; None if its header is invalid."""
    return parse_file_header(file.pread(FILE_HEADER.size, 0), start)


class _Replay:
    """Applies the frames of one file to the slots."""

    def __init__(self, found: Recovered, file: LogFile) -> None:
        self._found = found
        self._file = file
        self.broken: dict[int, str] = {}
        """The numbers of slots that lost a frame, and what is logged about each."""

    def apply(self, frame: Frame) -> None:
        """Apply a frame. The batches of a slot after a lost frame are skipped; a lost CUT is applied with the next frame."""
        found, kind = self._found, frame.kind
        if kind in (FrameKind.FOLLOWS, FrameKind.DURABLE):
            return
        if kind == FrameKind.BIND:
            topic_id, partition, incarnation, _, topic = parse_bind(frame.payload)
            slot = found.bind(frame.slot, SlotId(topic_id, partition, incarnation), topic)
            if slot.last_file == NO_FILE and not slot.begin:
                slot.begin = self._file.start
            return
        if kind == FrameKind.DROP:
            dropped = found.drop(frame.slot)
            if dropped is not None:
                dropped.drop(self._file)
            return
        bound = found.numbered.get(frame.slot)
        if bound is not None:
            self._apply_to(bound, frame)

    def _apply_to(self, slot: Slot, frame: Frame) -> None:
        file, kind = self._file, frame.kind
        if kind == FrameKind.BATCHES:
            if frame.previous_end < slot.end_offset:
                reader = SlotReader(slot, self._found.files, read_waiting)
                slot.cut(file, reader.planned_cut(frame.previous_end))
            if frame.previous_end == slot.end_offset:
                slot.append(file, frame.position, frame.batches, rolled=bool(frame.flags & ROLLED))
            elif slot.number not in self.broken:
                self.broken[slot.number] = (
                    f"{slot_text(slot.slot_id, slot.topic)} lost its records from offset {slot.end_offset} on: "
                    f"frames before byte {frame.position - file.start} of {file.path} are damaged"
                )
        elif kind == FrameKind.CUT:
            cut = Cut(*CUT_PAYLOAD.unpack(frame.payload))
            if cut.end_offset <= slot.end_offset:
                slot.cut(file, cut)
                self.broken.pop(slot.number, None)  # what is missing was cut off later
        elif kind == FrameKind.ABORTED:
            transaction = AbortedTransaction(*ABORTED_PAYLOAD.unpack(frame.payload))
            if transaction.last_offset < slot.end_offset:  # else its batches are lost
                slot.add_aborted(file, transaction)
        elif kind == FrameKind.SNAPSHOT:
            (offset,) = LONG.unpack_from(frame.payload)
            if offset <= slot.end_offset:  # else its batches are lost
                slot.enter(file)
                slot.add_snapshot(offset, bytes(frame.payload[LONG.size :]))
        elif kind == FrameKind.RESET:
            slot.reset(file, *LONG.unpack(frame.payload))
        else:
            (offset,) = LONG.unpack(frame.payload)
            slot.enter(file)
            if kind == FrameKind.START:
                slot.trim(offset)
            elif offset < slot.end_offset:
                reader = SlotReader(slot, self._found.files, read_waiting)
                entries = (entry for _, entry in reader.entries_from(offset))
                slot.split(offset, ((entry.size, entry.last_offset, entry.max_timestamp) for entry in entries))
            elif offset == slot.end_offset:  # else its batches are lost
                slot.roll(offset)
