"""The files of a partition's directory, and their recovery when the partition is opened.

FORMAT   `<20-digit base offset>` and one of the suffixes below. An additional `.deleted` marks a file to be
         deleted, `.cleaned` one that a compaction was writing, `.swap` one that replaces the segments whose
         offsets it covers.
RULES    1. As Apache Kafka at its start: `.deleted` and `.cleaned` files are deleted; a `.swap` file is renamed, and
            the segments that it replaces are deleted, unless a `.cleaned` file at or before it shows that the set was
            incomplete. An index without a log is deleted. An invalid `.swap` log replaces nothing: both brokers rename
            a file to `.swap` only after it is fully written.
         2. A consistent directory is listed once and not changed.
         3. Apache Kafka's cleaner may remove the end of a segment, and no checkpoint covers a cleaning that was killed. But it
            replaces segments in their order, each durably, and a replaced one stays for a while as `.deleted`: if that ends
            where a later segment starts, all before is durable, and offsets that are missing there are no loss. Before the
            evidence is deleted, they are filled: a header without records ends each segment, as after our own compaction.
            Segments without batches are joined to the previous one. A truncation deletes this evidence before.
         4. Snapshots of the metadata log (`.checkpoint.deleted`) and all other names are left alone; producer snapshots
            have their own module.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import NamedTuple

from protocol.batch_builder import assemble
from protocol.errors import KafkaError
from protocol.records import (
    BATCH_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)
from storage.io.disk import DELETED, Disk
from storage.segments.segment_files import headers_from

LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX = ".log", ".index", ".timeindex", ".txnindex"
INDEXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
CLEANED, SWAP = ".cleaned", ".swap"
_SNAPSHOT_DELETED = ".checkpoint.deleted"
_DIGITS = 20
_MAX_OFFSETS = 2**31  # of one segment: they are relative to its base offset

_log = logging.getLogger("barnabas.storage")


class SegmentListing(NamedTuple):
    """The segments in a recovered directory."""

    bases: list[int]
    """Base offsets, ascending."""
    without_index: list[int]
    """Segments without an offset or time index."""
    with_aborted: list[int]
    """Segments with a transaction index."""


def recover_directory(
    disk: Disk, directory: str, names: Sequence[str] | None = None, whole_end: int | None = None
) -> SegmentListing:
    """Recover a directory, created if missing, and return its segments.

    `names`: its contents, if already listed; `whole_end`: of a log that was not closed cleanly, the offset below which missing
    offsets are no loss.
    """
    if names is None:
        if not disk.is_dir(directory):
            disk.make_dirs(directory)
        names = disk.listdir(directory)
    if any(name.endswith((DELETED, CLEANED, SWAP)) for name in names):
        _finish_interrupted(disk, directory, names, whole_end)
        names = disk.listdir(directory)
    bases: dict[str, set[int]] = {suffix: set() for suffix in (LOG, *INDEXES)}
    for name in names:
        known = bases.get(name[_DIGITS:])
        if known is not None and name[:_DIGITS].isdecimal():
            known.add(int(name[:_DIGITS]))
    logs = bases[LOG]
    for suffix in INDEXES:
        for base in bases[suffix] - logs:
            disk.unlink(f"{directory}/{base:020d}{suffix}", missing_ok=True)
    return SegmentListing(
        sorted(logs),
        sorted(logs - (bases[OFFSET_INDEX] & bases[TIME_INDEX])),
        sorted(logs & bases[TRANSACTION_INDEX]),
    )


def delete_replaced(disk: Disk, directory: str) -> None:
    """Delete the replaced segments, durably: after a truncation they prove nothing (rule 3)."""
    names = [name for name in disk.listdir(directory) if _is_log(name, LOG + DELETED)]
    for name in names:
        disk.unlink(f"{directory}/{name}", missing_ok=True)
    if names:
        disk.sync_dir(directory)


def _finish_interrupted(disk: Disk, directory: str, names: Sequence[str], whole_end: int | None) -> None:
    def remove(name: str) -> None:
        disk.unlink(f"{directory}/{name}", missing_ok=True)

    cleaned = [name for name in names if name.endswith(CLEANED) and _is_numbered(name)]
    swaps = [name for name in names if name.endswith(SWAP) and _is_numbered(name)]
    min_cleaned = min((_base(name) for name in cleaned), default=None)
    for name in [swap for swap in swaps if min_cleaned is not None and _base(swap) >= min_cleaned]:
        remove(name)
        swaps.remove(name)
    for name in cleaned:
        remove(name)
    damaged = {
        _base(name)
        for name in swaps
        if name.endswith(LOG + SWAP)
        and name.removesuffix(SWAP) in names
        and not _measure(disk, f"{directory}/{name}").is_whole
    }
    for name in [swap for swap in swaps if _base(swap) in damaged]:
        _log.warning("Removing incomplete compacted segment %s/%s; its source segments stay", directory, name)
        remove(name)
        swaps.remove(name)
    replacements = [name for name in swaps if name.endswith(LOG + SWAP)]
    if replacements:
        start = min(_base(name) for name in replacements)
        end = max(start + 1, *(_measure(disk, f"{directory}/{name}").end_offset for name in replacements))
        for name in names:
            if name[_DIGITS:] in (LOG, *INDEXES) and _is_numbered(name) and start <= _base(name) < end:
                remove(name)
    if whole_end is not None:
        _fill_gaps(disk, directory, whole_end)
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    for name in names:
        if name.endswith(DELETED) and not name.endswith(_SNAPSHOT_DELETED):
            remove(name)


def _fill_gaps(disk: Disk, directory: str, whole_end: int) -> None:
    """Fill the gaps between segments above `whole_end` that an interrupted cleaning has left (rule 3)."""
    names = disk.listdir(directory)
    paths: dict[int, str] = {}
    for suffix in (LOG, LOG + SWAP):
        paths |= {_base(name): f"{directory}/{name}" for name in names if _is_log(name, suffix)}
    bases = sorted(paths)
    cleaned_end = _cleaned_end(disk, directory, names, bases, whole_end) if bases else -1
    kept: list[int] = []
    for base, following in zip(bases, [*bases[1:], -1], strict=True):
        is_empty = whole_end < following <= cleaned_end and paths[base].endswith(LOG) and not disk.size(paths[base])
        if is_empty and kept and following - kept[-1] <= _MAX_OFFSETS:
            for suffix in (LOG, *INDEXES):
                disk.unlink(f"{directory}/{base:020d}{suffix}", missing_ok=True)
        else:
            kept.append(base)
    for slot, (base, following) in enumerate(pairwise(kept)):
        if whole_end < following <= cleaned_end:
            _fill_end(disk, paths[base], following, [paths[later] for later in kept[slot + 1 :]])


def _cleaned_end(disk: Disk, directory: str, names: Sequence[str], bases: list[int], whole_end: int) -> int:
    """The start of the first segment that an interrupted cleaning has not replaced, if it is above `whole_end` (rule 3)."""

    def following(name: str) -> int:
        return next((base for base in bases if base > _base(name)), -1)

    ends = [following(name) for name in names if _is_log(name, LOG + SWAP)]
    for name in sorted([name for name in names if _is_log(name, LOG + DELETED)], reverse=True):
        if bases[0] <= _base(name) and following(name) > whole_end:
            replaced = _measure(disk, f"{directory}/{name}")
            if replaced.is_whole and _base(name) < replaced.end_offset in bases:
                ends.append(replaced.end_offset)
                break
    return max(ends, default=-1)


def _fill_end(disk: Disk, path: str, end_offset: int, later_paths: Sequence[str]) -> None:
    """Append a header without records if the log ends below `end_offset`, durably."""
    found, size = _measure(disk, path), disk.size(path)
    if (
        found.end_offset >= end_offset or size - found.size > BATCH_OVERHEAD
    ):  # up to that it may be a torn header of ours
        return
    epochs = (_measure(disk, later, 1).leader_epoch for later in later_paths)
    leader_epoch = next((epoch for epoch in epochs if epoch >= 0), max(found.leader_epoch, 0))
    filler = BatchHeader(
        base_offset=end_offset - 1, batch_length=0, leader_epoch=leader_epoch, magic=MAGIC, crc=0, attributes=0,
        last_offset_delta=0, base_timestamp=NO_TIMESTAMP, max_timestamp=NO_TIMESTAMP, producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE, record_count=0,
    )  # fmt: skip
    file = disk.open(path, write=True)
    if found.size < size:
        file.truncate(found.size)
    file.pwrite(assemble(filler, b""), found.size)
    file.sync()
    _log.info("%s was compacted up to offset %d, which no checkpoint says", path, end_offset)


def _is_log(name: str, suffix: str) -> bool:
    return name[_DIGITS:] == suffix and _is_numbered(name)


def _is_numbered(name: str) -> bool:
    return name[:_DIGITS].isdecimal() and name[_DIGITS : _DIGITS + 1] == "."


def _base(name: str) -> int:
    return int(name[:_DIGITS])


class _MeasuredLog(NamedTuple):
    end_offset: int
    """After the last whole batch."""
    leader_epoch: int
    """Of the last whole batch; NO_LEADER_EPOCH without any."""
    size: int
    """Of the whole batches."""
    is_whole: bool
    """Whether the log consists of whole batches."""


def _measure(disk: Disk, path: str, limit: int | None = None) -> _MeasuredLog:
    """Measure a log by the headers of its batches, or of the first ones."""
    file = disk.open(path, write=False)
    size, end, end_offset, leader_epoch = file.size(), 0, _base(path.rpartition("/")[2]), NO_LEADER_EPOCH
    with suppress(KafkaError):
        for position, header in islice(headers_from(file, size, 0), limit):
            end, end_offset, leader_epoch = position + header.size, header.next_offset, header.leader_epoch
    return _MeasuredLog(end_offset, leader_epoch, end, end == size)
