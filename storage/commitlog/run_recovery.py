"""The files of a commit log at a start: a run or the files that it replaces, never both.

RULES    1. A run with a valid queue file replaces every file of a lower generation whose start is in its range: those are
            removed.
         2. A run without one is removed if a file of a lower generation has its start: then all its sources exist
            (run_file.py rule 6). Otherwise its queue file is made again, without the frames that are invalid. If its header is
            invalid too, the run is lost: it is skipped.
         3. A queue file without its log file, and a temporary file, are removed.
         4. A file that the catalog names, or of which only the queue file exists, is lost, unless a run replaces it: nothing
            else removes a sealed file.
NOT HERE Frames of files that are not sealed (recovery.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from storage.commitlog.frames import FILE_HEADER, parse_file_header
from storage.commitlog.log_file import LOG_SUFFIX, QUEUE_SUFFIX, LogName, parse_log_name
from storage.commitlog.queue_file import parse_queue, queue_run, read_row
from storage.commitlog.run_file import run_queue
from storage.commitlog.sealing import queue_path, read_queue_header
from storage.commitlog.slots import slot_id_of, slot_text, topic_of
from storage.io.disk import TEMPORARY, Disk
from storage.io.disk_lookup import read_waiting

_log = logging.getLogger("barnabas.storage")

_UNKNOWN_PARTITIONS = "its partitions"


@dataclass(slots=True)
class Survey:
    """What a start does with the files of a commit log."""

    kept: list[LogName] = field(default_factory=list)
    """Oldest first."""
    replaced: list[list[LogName]] = field(default_factory=list)
    """The files that each run replaces, oldest first."""
    unfinished: list[LogName] = field(default_factory=list)
    """Runs whose sources exist."""
    unsealed: list[LogName] = field(default_factory=list)
    """Runs whose queue file is made again."""
    orphans: list[str] = field(default_factory=list)
    """Other names to remove."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Of each sealed run, the starts of the first and the last file that it replaces."""


def survey(disk: Disk, directory: str, known: Mapping[LogName, bytes] = MappingProxyType({})) -> Survey:
    """Decide about all files; changes nothing. `known`: headers of queue files that were valid (catalog.py)."""
    listed = disk.listdir(directory)
    names = {name for name in map(parse_log_name, listed) if name is not None}
    found = Survey()
    for run in sorted((name for name in names if name.generation), key=lambda name: name.generation, reverse=True):
        if run not in names:
            continue
        older = {name for name in names if name.generation < run.generation}
        first = _first_of(disk, f"{directory}/{run}", run.start, known.get(run))
        if first is not None:
            found.ranges.append((first, run.start))
            replaced = {name for name in older if first <= name.start <= run.start}
            names -= replaced
            found.replaced.append(sorted(replaced))
        elif any(name.start == run.start for name in older):
            names.remove(run)
            found.unfinished.append(run)
        else:
            found.unsealed.append(run)
    found.kept = sorted(names)
    found.orphans = _orphans(listed, names)
    return found


def _first_of(disk: Disk, path: str, start: int, known: bytes | None) -> int | None:
    """The start of the first file that a run replaces; None without a valid queue file, or if the run has lost its end."""
    found = read_queue_header(disk, path, start, known)
    return None if found is None else found.first


def _orphans(listed: Sequence[str], names: Collection[LogName]) -> list[str]:
    """Queue files without a log file, and temporary ones (rule 3)."""
    known = {queue_path(str(name)) for name in names}
    return [
        name
        for name in listed
        if QUEUE_SUFFIX in name
        and name not in known
        and parse_log_name(name.removesuffix(TEMPORARY).removesuffix(QUEUE_SUFFIX) + LOG_SUFFIX) is not None
    ]


def lost_files(disk: Disk, directory: str, found: Survey, known: Iterable[LogName]) -> list[LogName]:
    """The sealed files that are missing (rule 4), oldest first; `known`: those that the catalog names."""
    present = {*found.kept, *found.unfinished, *chain.from_iterable(found.replaced)}
    sealed = {*known, *_valid_queues(disk, directory, found.orphans)}
    return sorted(
        name for name in sealed - present if not any(first <= name.start <= last for first, last in found.ranges)
    )


def _valid_queues(disk: Disk, directory: str, orphans: Sequence[str]) -> Iterator[LogName]:
    """The log files whose queue files are among these names, and valid."""
    for orphan in orphans:
        name = parse_log_name(orphan.removesuffix(QUEUE_SUFFIX) + LOG_SUFFIX)
        if name is not None and parse_queue(disk.read(f"{directory}/{orphan}"), name.start) is not None:
            yield name


def partitions_in(disk: Disk, lost: str) -> str:
    """The partitions with batches in a lost log file, for messages: as its queue file names them, if that is valid."""
    return ", ".join(_last_offsets(disk, lost)) or _UNKNOWN_PARTITIONS


def _last_offsets(disk: Disk, log: str) -> dict[str, int]:
    """The partitions with batches in a log file, and the last offset of each there, as a valid queue file says; else empty."""
    path, name = queue_path(log), parse_log_name(log.rpartition("/")[2])
    parsed = parse_queue(disk.read(path), name.start) if name is not None and disk.exists(path) else None
    if parsed is None:
        return {}
    (header, states), queue, found = parsed, disk.open(path, write=False), dict[str, int]()
    for state in json.loads(states):
        row = read_row(queue, state[0], header.slot_count, read_waiting)
        if len(state) > 1 and row.entry_count:
            entries = queue_run(queue, header.slot_count, row, read_waiting)
            found[slot_text(slot_id_of(state), topic_of(state))] = entries.last_offset(row.entry_count - 1)
    return found


def log_paths(disk: Disk, directory: str, known: Mapping[LogName, bytes]) -> dict[int, str]:
    """The paths of the log files by start, without those that a run replaces; finishes what a crash interrupted.

    `known`: headers of queue files that were valid.
    """
    found = survey(disk, directory, known)
    unreadable = {run for run in found.unsealed if not _rebuild(disk, f"{directory}/{run}", run.start)}
    if found.unsealed:
        found = survey(disk, directory, known)
    for name in lost_files(disk, directory, found, known):
        path = f"{directory}/{name}"
        _log.error("%s is missing: the records of %s in it are lost", path, partitions_in(disk, path))
    for removed in [*found.replaced, found.unfinished]:
        remove_files(disk, [f"{directory}/{name}" for name in removed])
    for orphan in found.orphans:
        disk.unlink(f"{directory}/{orphan}", missing_ok=True)
    return {name.start: f"{directory}/{name}" for name in found.kept if name not in unreadable}


def _rebuild(disk: Disk, path: str, start: int) -> bool:
    """Make a missing queue file again (rule 2); False if the run has no valid header."""
    if parse_file_header(disk.open(path, write=False).pread(FILE_HEADER.size, 0), start) is None:
        _log.error("%s has no valid header: the records of %s in it are lost", path, partitions_in(disk, path))
        return False
    queue, sealed = run_queue(disk, path, start), _last_offsets(disk, path)
    for begin, end in queue.lost:
        _log.warning("%s is damaged from byte %d to %d", path, begin, end)
    disk.replace_atomically(queue_path(path), queue.data)
    kept = _last_offsets(disk, path)
    for partition, last_offset in sealed.items():  # of a run that has lost its end
        if kept.get(partition, -1) < last_offset:
            text = "%s lost records up to offset %d: they were in the lost end of %s"
            _log.warning(text, partition, last_offset, path)
    return True


def remove_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove log files and their queue files, the last one first and durably (run_file.py rule 6)."""
    for last, path in enumerate(reversed(paths)):
        disk.unlink(path, missing_ok=True)
        disk.unlink(queue_path(path), missing_ok=True)
        if not last:
            disk.sync_dir(path.rpartition("/")[0])
