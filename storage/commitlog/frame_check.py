"""The check of frames before the first read of their batches in this process.

RULES    1. A start does not read the frames of sealed files (recovery.py rule 1): those files are not `is_verified`. Files that
            a start has scanned, and files that this process has written, are: a read of them costs nothing more.
         2. The CRC of each frame to be read is checked, which covers base offsets and leader epochs, and each batch must end
            at the offset of its entry. The CRCs of batches, which cover the rest, are left to the clients, as in segments.
         3. A slot remembers the ranges of offsets that were checked, the last `_RANGES` of them: a reader that continues
            extends one, so each frame is checked once.
         4. Readers get the batches before a damaged frame, and at it CORRUPT_MESSAGE, at each read. It is logged once.
         5. The CRCs of frames cover the id in the header of their file. If that is lost, they cannot be checked.
NOT HERE Checks of whole files (storage/inspection/commit_log_check.py), copies into runs (run_file.py rule 4).
         Why: docs/decisions/0122-frames-are-checked-before-their-first-read.md
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.records import BATCH_OVERHEAD, parse_header
from storage.commitlog.frames import HEAD_SIZE, FrameWindow, batches_end
from storage.commitlog.log_file import NO_ID_CRC, LogFile
from storage.commitlog.queue_file import Entry, QueuePart, QueueRun, unpack_entries
from storage.io.disk_lookup import read_waiting

OffsetRange = tuple[int, int]
"""The first offset, and the one after the last."""

_RANGES: Final = 4
_ENTRIES: Final = 64  # per read
_WINDOW: Final = 4096  # bytes per read


class Damage(NamedTuple):
    """A damaged frame, or a damaged batch in one whose CRC is right."""

    first: Entry
    """Of the first batch in it."""
    next_offset: int
    """The offset after it."""


def covers(checked: tuple[OffsetRange, ...], offset: int, end_offset: int) -> bool:
    """Whether one of these ranges contains another one."""
    return any(first <= offset and end_offset <= end for first, end in checked)


def with_range(checked: tuple[OffsetRange, ...], first: int, end: int) -> tuple[OffsetRange, ...]:
    """The ranges with another one, which is merged with those that it touches; the oldest ones are dropped (rule 3)."""
    others = []
    for known in checked:
        if known[0] <= end and first <= known[1]:
            first, end = min(first, known[0]), max(end, known[1])
        else:
            others.append(known)
    return ((first, end), *others[: _RANGES - 1])


def check_frames(file: LogFile, slot: int, part: QueuePart, end_offset: int) -> tuple[int | None, Damage | None]:
    """Check the frames with the entries of `part` up to `end_offset`; waits for the disk.

    Returns the end offset of those before a damaged one, None without any, and the damage. `slot`: its number.
    """
    handle = file.log.get(read_waiting)
    window = FrameWindow(handle, handle.size())
    window.step = _WINDOW
    has_id = file.file_id_crc != NO_ID_CRC
    run, number = part.run, _first_in_frame(part.run, part.first)
    checked_end: int | None = None
    frame_end = 0  # of the current one, in the file
    while number < run.count:
        for entry in unpack_entries(run.get(number, min(_ENTRIES, run.count - number))):
            if has_id and entry.position >= frame_end:
                if checked_end is not None and checked_end >= end_offset:
                    return checked_end, None
                found = batches_end(window, file.file_id_crc, file.start, entry.position - HEAD_SIZE, slot)
                if found is None:
                    return checked_end, Damage(entry, _end_of_frame(run, number))
                frame_end = found
            if number >= part.first:
                if not _is_named(window, entry):
                    return checked_end, Damage(entry, entry.last_offset + 1)
                checked_end = entry.last_offset + 1
            number += 1
    return checked_end, None


def _is_named(window: FrameWindow, entry: Entry) -> bool:
    """Whether a batch is the one that its entry names."""
    try:
        header = parse_header(window.get(entry.position, BATCH_OVERHEAD))
    except KafkaError:
        return False
    return (header.size, header.last_offset) == (entry.size, entry.last_offset)


def _first_in_frame(run: QueueRun, number: int) -> int:
    """The first entry of the frame with this entry: batches of a frame touch, and a head precedes each frame."""
    while number:
        begin = max(number - _ENTRIES, 0)
        entries = unpack_entries(run.get(begin, number + 1 - begin))
        for at in range(len(entries) - 1, 0, -1):
            if entries[at - 1].position + entries[at - 1].size != entries[at].position:
                return begin + at
        number = begin
    return 0


def _end_of_frame(run: QueueRun, number: int) -> int:
    """The offset after the last entry that touches this one, or one between."""
    (last,) = unpack_entries(run.get(number, 1))
    for following in range(number + 1, run.count):
        (entry,) = unpack_entries(run.get(following, 1))
        if entry.position != last.position + last.size:
            break
        last = entry
    return last.last_offset + 1
