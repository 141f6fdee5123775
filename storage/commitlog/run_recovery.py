"""The files of a commit log at a start: a run or the files that it replaces, never both.

RULES    1. A run with a valid queue file replaces every file of a lower generation whose start is in its range: those are
            removed.
         2. A run without one is removed if a file of a lower generation has its start: then all its sources exist
            (run_file.py rule 6). Otherwise its queue file is made again, without the frames that are invalid.
         3. A queue file without its log file, and a temporary file, belong to a change that did not happen.
NOT HERE Frames of files that are not sealed (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from storage.commitlog.log_file import LOG_SUFFIX, QUEUE_SUFFIX, LogName, parse_log_name
from storage.commitlog.queue_file import QueueHeader, parse_queue
from storage.commitlog.run_file import run_queue
from storage.commitlog.sealing import queue_path
from storage.io.disk import TEMPORARY, Disk

_log = logging.getLogger("barnabas.storage")


def log_paths(disk: Disk, directory: str) -> dict[int, str]:
    """The paths of the log files by start, without those that a run replaces; finishes what a crash interrupted."""
    listed = disk.listdir(directory)
    names = {name for name in map(parse_log_name, listed) if name is not None}
    for run in sorted((name for name in names if name.generation), key=lambda name: name.generation, reverse=True):
        if run in names:
            names -= _resolved(disk, directory, run, names)
    _remove_orphans(disk, directory, listed, names)
    return {name.start: f"{directory}/{name}" for name in sorted(names)}


def _resolved(disk: Disk, directory: str, run: LogName, names: Collection[LogName]) -> set[LogName]:
    """Decide about a run; returns the names of the files that were removed."""
    path = f"{directory}/{run}"
    header = None
    if disk.exists(queue_path(path)):
        found = parse_queue(disk.read(queue_path(path)), run.start)
        header = None if found is None else found[0]
    if header is None:
        if any(name.start == run.start and name.generation < run.generation for name in names):
            remove_files(disk, [path])
            return {run}
        header = _rebuild(disk, path, run.start)
    replaced = {name for name in names if header.first <= name.start <= run.start and name.generation < run.generation}
    remove_files(disk, [f"{directory}/{name}" for name in sorted(replaced)])
    return replaced


def _rebuild(disk: Disk, path: str, start: int) -> QueueHeader:
    """Make a missing queue file again (rule 2)."""
    queue = run_queue(disk, path, start)
    for begin, end in queue.lost:
        _log.warning("%s is damaged from byte %d to %d", path, begin, end)
    disk.replace_atomically(queue_path(path), queue.data)
    found = parse_queue(queue.data, start)
    assert found is not None
    return found[0]


def remove_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove log files and their queue files, the last one first and durably (run_file.py rule 6)."""
    for last, path in enumerate(reversed(paths)):
        disk.unlink(path, missing_ok=True)
        disk.unlink(queue_path(path), missing_ok=True)
        if not last:
            disk.sync_dir(path.rpartition("/")[0])


def _remove_orphans(disk: Disk, directory: str, listed: Sequence[str], names: Collection[LogName]) -> None:
    known = {queue_path(str(name)) for name in names}
    for name in listed:
        log_name = name.removesuffix(TEMPORARY).removesuffix(QUEUE_SUFFIX) + LOG_SUFFIX
        is_ours = QUEUE_SUFFIX in name and parse_log_name(log_name) is not None
        if is_ours and name not in known:
            disk.unlink(f"{directory}/{name}", missing_ok=True)
