"""Sealing a log file: its queue file.

RULES    1. The queue is made from what the slots recorded; later changes of the slots are not in it.
         2. The log file is durable before its queue file exists, so recovery trusts a file that has one.
         3. States of slots are recorded, and entries removed from the memory, a few at a time: one append may finish a file
            that thousands of slots have used.
NOT HERE When a file is sealed (commit_log.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from protocol.records import NO_TIMESTAMP
from storage.commitlog.log_file import LOG_SUFFIX, QUEUE_SUFFIX, LogFile, QueueFile, Slice, is_run
from storage.commitlog.queue_file import HEADER, QueueHeader, Row, build_queue, header_of, last_batch_end, parse_queue
from storage.commitlog.slots import Slot, packed_json
from storage.config.config_def import MAX_INT
from storage.io.disk import Disk
from storage.io.disk_lookup import read_waiting
from storage.io.file_handle_cache import FileHandleCache


def queue_path(path: str) -> str:
    """The path of a log file's queue file."""
    return path.removesuffix(LOG_SUFFIX) + QUEUE_SUFFIX


def read_queue_header(disk: Disk, path: str, start: int, known: bytes | None) -> QueueHeader | None:
    """The header of a log file's queue file; None without a valid one, or if the log file has lost its end.

    `known`: the header that it had when all of it was valid, so that no more is read if it has that now; None checks all of it.
    """
    queue = queue_path(path)
    if not disk.exists(queue):
        return None
    if known is not None:
        file = disk.open(queue, write=False)
        packed = file.pread(HEADER.size, 0)
        file.close()
        if packed == known:
            header = header_of(packed)
            return header if has_all_batches(disk, path, header) else None
    found = parse_queue(disk.read(queue), start)
    return None if found is None or not has_all_batches(disk, path, found[0]) else found[0]


def has_all_batches(disk: Disk, path: str, header: QueueHeader) -> bool:
    """Whether a sealed log file is as long as its queue file says; of a run, up to its last batch."""
    if not is_run(path):
        return disk.size(path) >= header.end - header.start
    queue = disk.open(queue_path(path), write=False)
    is_whole = queue.size() == header.file_size and disk.size(path) >= last_batch_end(queue, header)
    queue.close()
    return is_whole


def record_states(file: LogFile, slots: Mapping[int, Slot], limit: int) -> bool:
    """Record the states of at most `limit` slots in a finished file; returns whether those of all were."""
    unrecorded = file.unrecorded
    if unrecorded is None:
        unrecorded = file.unrecorded = _without_state(file, slots)
    for number in unrecorded[-limit:]:
        if number in slots:
            slots[number].record_in(file)
    del unrecorded[-limit:]
    return not unrecorded


def _without_state(file: LogFile, slots: Mapping[int, Slot]) -> list[int]:
    return [number for number in list(file.touched) if number not in file.states and number in slots]


def queue_of(file: LogFile, slots: Mapping[int, Slot]) -> Callable[[], bytes]:
    """The contents of a finished file's queue file, to be made in any thread; `slots`: by number."""
    for number in _without_state(file, slots):  # also of slots that a recovery in another thread has added since
        slots[number].record_in(file)
    ends = [slots[number].end_offset if number in slots else 0 for number in range(file.slot_count)]
    for number, end_offset in file.ends.items():
        if number < file.slot_count:
            ends[number] = end_offset
    return partial(_built, file, ends)


def _built(file: LogFile, ends: list[int]) -> bytes:
    rows = []
    entries = []
    first = 0
    for number, end_offset in enumerate(ends):
        found = file.slices.get(number)
        if found is None:
            rows.append(Row(end_offset, NO_TIMESTAMP, first, 0, 0))
        else:
            rows.append(Row(end_offset, found.max_timestamp, first, found.count, found.size))
            entries.append(found.packed)
            first += found.count
    states = b",".join([packed_json(file.states[number]) for number in sorted(file.states)])
    return build_queue(file.start, file.end, rows, entries, b"[%s]" % states, removed=file.removed)


def seal(disk: Disk, file: LogFile, queue: bytes, cache: FileHandleCache | None) -> dict[int, Slice]:
    """Sync a log file and write its queue file; returns the slices that are no longer needed."""
    log = file.log.get(read_waiting)
    log.truncate(file.end - file.start)  # releases the unused part, and the bytes of a failed write
    log.sync()
    disk.replace_atomically(queue_path(file.path), queue)
    file.log.release()
    return set_sealed_by(disk, file, queue, cache)


def set_sealed_by(disk: Disk, file: LogFile, queue: bytes, cache: FileHandleCache | None) -> dict[int, Slice]:
    """The file is sealed by its queue file with these contents; returns the slices that are no longer needed."""
    found = parse_queue(queue, file.start)
    assert found is not None
    return set_sealed(disk, file, found[0], cache)


def set_sealed(disk: Disk, file: LogFile, header: QueueHeader, cache: FileHandleCache | None) -> dict[int, Slice]:
    """The file is sealed by its queue file with this header; returns the slices that are no longer needed."""
    slices, file.slices = file.slices, {}
    file.queue_file = QueueFile(disk, queue_path(file.path), cache, header)
    file.previous = None
    file.touched, file.ends, file.states = set(), {}, {}
    return slices


def forget_slices(slices: list[dict[int, Slice]], slots: Mapping[int, Slot], limit: int = MAX_INT) -> None:
    """Remove at most `limit` entries of sealed files from their slots."""
    while slices and limit > 0:
        unused = slices[0]
        for _ in range(min(limit, len(unused))):
            number, forgotten = unused.popitem()
            limit -= 1
            slot = slots.get(number)
            if slot is not None:
                slot.slices = tuple([kept for kept in slot.slices if kept is not forgotten])
        if not unused:
            slices.pop(0)
