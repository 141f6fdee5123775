"""How a partition's directory is laid out, and how it is put in order when a partition is opened.

FORMAT   `<20-digit base offset>` and one of the suffixes below. A further `.deleted` marks a file that is to be
         deleted, `.cleaned` one that a compaction was writing, `.swap` one that is to replace the segments whose
         offsets it covers.
RULES    1. As Apache Kafka does at its start: `.deleted` and `.cleaned` files go; a `.swap` file takes its place, and
            the segments that it replaces go, unless a `.cleaned` file at or before it shows that the set was not
            complete. An index without a log goes. A `.swap` log that is no log replaces nothing: nobody of ours, nor Kafka,
            gives that name before all is written.
         2. A directory in which nothing is out of order is listed once and nothing else happens.
         3. Snapshots of the metadata log (`.checkpoint.deleted`) are not ours to delete; every other name that is
            not a segment's is left alone: whoever looks after the producers' snapshots knows which there are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.records import BATCH_OVERHEAD, parse_header
from storage.io.disk import DELETED, Disk

LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX = ".log", ".index", ".timeindex", ".txnindex"
INDEXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
CLEANED, SWAP = ".cleaned", ".swap"
_SNAPSHOT_DELETED = ".checkpoint.deleted"
_DIGITS = 20


_log = logging.getLogger("barnabas.storage")


class Layout(NamedTuple):
    """The segments in a directory that is in order."""

    bases: list[int]
    """Base offsets, ascending."""
    without_index: list[int]
    """Those that lack an index."""
    with_aborted: list[int]
    """Those that have a transaction index."""


def settle(disk: Disk, directory: str, names: Sequence[str] | None = None) -> Layout:
    """Put a directory in order, made when it is missing, and say which segments it holds.

    Args:
        disk: where it lies.
        directory: its path.
        names: what is in it, where somebody has just looked.
    """
    if names is None:
        if not disk.is_dir(directory):
            disk.make_dirs(directory)
        names = disk.listdir(directory)
    if any(name.endswith((DELETED, CLEANED, SWAP)) for name in names):
        _finish_what_was_begun(disk, directory, names)
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
    return Layout(
        sorted(logs),
        sorted(logs - (bases[OFFSET_INDEX] & bases[TIME_INDEX])),
        sorted(logs & bases[TRANSACTION_INDEX]),
    )


def _finish_what_was_begun(disk: Disk, directory: str, names: Sequence[str]) -> None:
    def remove(name: str) -> None:
        disk.unlink(f"{directory}/{name}", missing_ok=True)

    cleaned = [name for name in names if name.endswith(CLEANED) and _is_numbered(name)]
    swaps = [name for name in names if name.endswith(SWAP) and _is_numbered(name)]
    least_cleaned = min((_base(name) for name in cleaned), default=None)
    for name in names:
        if name.endswith(DELETED) and not name.endswith(_SNAPSHOT_DELETED):
            remove(name)
    for name in [swap for swap in swaps if least_cleaned is not None and _base(swap) >= least_cleaned]:
        remove(name)
        swaps.remove(name)
    for name in cleaned:
        remove(name)
    damaged = {
        _base(name)
        for name in swaps
        if name.endswith(LOG + SWAP) and name.removesuffix(SWAP) in names and not _is_whole(disk, f"{directory}/{name}")
    }
    for name in [swap for swap in swaps if _base(swap) in damaged]:
        _log.warning("Removing %s/%s, which nobody has written to its end; its sources stay", directory, name)
        remove(name)
        swaps.remove(name)
    replacing = [name for name in swaps if name.endswith(LOG + SWAP)]
    if replacing:
        start = min(_base(name) for name in replacing)
        end = max(start + 1, *(_next_offset(disk, f"{directory}/{name}", _base(name)) for name in replacing))
        for name in names:
            if name[_DIGITS:] in (LOG, *INDEXES) and _is_numbered(name) and start <= _base(name) < end:
                remove(name)
    for name in swaps:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")


def _is_numbered(name: str) -> bool:
    return name[:_DIGITS].isdecimal() and name[_DIGITS : _DIGITS + 1] == "."


def _base(name: str) -> int:
    return int(name[:_DIGITS])


def _is_whole(disk: Disk, path: str) -> bool:
    """Whether a log is batches and nothing else, as their headers say."""
    file = disk.open(path, write=False)
    size, position = file.size(), 0
    while position + BATCH_OVERHEAD <= size:
        try:
            position += parse_header(file.pread(BATCH_OVERHEAD, position)).size
        except KafkaError:
            return False
    return position == size


def _next_offset(disk: Disk, path: str, base_offset: int) -> int:
    """Behind the last whole batch of a log that has no index yet."""
    file = disk.open(path, write=False)
    size = file.size()
    position, end_offset = 0, base_offset
    while position + BATCH_OVERHEAD <= size:
        try:
            header = parse_header(file.pread(BATCH_OVERHEAD, position))
        except KafkaError:
            break
        position += header.size
        if position <= size:
            end_offset = header.next_offset
    return end_offset
