"""Checks the catalog of a commit log against the queue files that it was made from.

RULES    1. A catalog that is older than the files, or names files that were replaced since, is in order: a start reads more.
         2. States that differ from those in the queue files are wrong: a start would believe them.
NOT HERE The queue files (commit_log_check.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.commitlog.catalog import CATALOG, Catalog, merged, packed_state, read_catalog
from storage.commitlog.log_file import LogName
from storage.commitlog.queue_file import HEADER
from storage.commitlog.sealing import queue_path
from storage.inspection.commit_log_files import read_queue_file
from storage.io.disk import Disk


def catalog_problem(disk: Disk, directory: str, kept: Iterable[LogName]) -> str | None:
    """What is wrong with the catalog in the directory of a commit log, as a sentence; `kept`: the files that a start uses."""
    if not disk.exists(f"{directory}/{CATALOG}"):
        return None
    catalog = read_catalog(disk, directory)
    if catalog.last is None:
        return "It is invalid: a start reads all queue files instead, and makes it again."
    expected = _states(disk, directory, catalog, set(kept))
    if expected is not None and expected != bytes(catalog.states):
        return "Its states are not those of the queue files. A repair makes it again."
    return None


def _states(disk: Disk, directory: str, catalog: Catalog, kept: set[LogName]) -> bytes | None:
    """The states in the queue files that a catalog names; None if one of them is not what it was (rule 1)."""
    states: dict[int, bytes] = {}
    for name, header in catalog.files.items():
        path = queue_path(f"{directory}/{name}")
        queue = read_queue_file(disk, path, name.start) if name in kept and disk.exists(path) else None
        if queue is None or queue.file.pread(HEADER.size, 0) != header:
            return None
        states.update({number: packed_state(state) for number, state in queue.states.items()})
    return merged(b"", states)
