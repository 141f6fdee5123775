"""The files of a partition's directory, and their recovery when the partition is opened.

FORMAT   `<20-digit base offset>` and one of the suffixes below. An additional `.deleted` marks a file to be
         deleted, `.cleaned` one that a compaction was writing, `.swap` one that replaces the segments whose
         offsets it covers.
RULES    1. As Apache Kafka at its start: `.deleted` and `.cleaned` files are deleted; a `.swap` file is renamed, and
            the segments that it replaces are deleted, unless a `.cleaned` file at or before it shows that the set was
            incomplete. An index without a log is deleted. An invalid `.swap` log replaces nothing: both brokers rename
            a file to `.swap` only after it is fully written.
         2. A consistent directory is listed once and not changed.
         3. Snapshots of the metadata log (`.checkpoint.deleted`) and all other names are left alone; producer snapshots
            have their own module.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from protocol.errors import KafkaError
from storage.io.disk import DELETED, Disk
from storage.segments.segment_files import headers_from

LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX = ".log", ".index", ".timeindex", ".txnindex"
INDEXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
CLEANED, SWAP = ".cleaned", ".swap"
_SNAPSHOT_DELETED = ".checkpoint.deleted"
_DIGITS = 20


_log = logging.getLogger("barnabas.storage")


class SegmentListing(NamedTuple):
    """The segments in a recovered directory."""

    bases: list[int]
    """Base offsets, ascending."""
    without_index: list[int]
    """Segments without an offset or time index."""
    with_aborted: list[int]
    """Segments with a transaction index."""


def recover_directory(disk: Disk, directory: str, names: Sequence[str] | None = None) -> SegmentListing:
    """Recover a directory, created if missing, and return its segments; `names`: its contents, if already listed."""
    if names is None:
        if not disk.is_dir(directory):
            disk.make_dirs(directory)
        names = disk.listdir(directory)
    if any(name.endswith((DELETED, CLEANED, SWAP)) for name in names):
        _finish_interrupted(disk, directory, names)
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


def _finish_interrupted(disk: Disk, directory: str, names: Sequence[str]) -> None:
    def remove(name: str) -> None:
        disk.unlink(f"{directory}/{name}", missing_ok=True)

    cleaned = [name for name in names if name.endswith(CLEANED) and _is_numbered(name)]
    swaps = [name for name in names if name.endswith(SWAP) and _is_numbered(name)]
    min_cleaned = min((_base(name) for name in cleaned), default=None)
    for name in names:
        if name.endswith(DELETED) and not name.endswith(_SNAPSHOT_DELETED):
            remove(name)
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
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")


def _is_numbered(name: str) -> bool:
    return name[:_DIGITS].isdecimal() and name[_DIGITS : _DIGITS + 1] == "."


def _base(name: str) -> int:
    return int(name[:_DIGITS])


class _MeasuredLog(NamedTuple):
    end_offset: int
    """After the last whole batch."""
    is_whole: bool
    """Whether the log consists of whole batches."""


def _measure(disk: Disk, path: str) -> _MeasuredLog:
    """Measure a log by the headers of its batches."""
    file = disk.open(path, write=False)
    size, end, end_offset = file.size(), 0, _base(path.rpartition("/")[2])
    with suppress(KafkaError):
        for position, header in headers_from(file, size, 0):
            end, end_offset = position + header.size, header.next_offset
    return _MeasuredLog(end_offset, end == size)
