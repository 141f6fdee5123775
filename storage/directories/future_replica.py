"""The copy of a log that is on its way to another log directory, on disk: its name, its making, taking the log's place.

FORMAT   `topic-partition.<32 hex digits>-future`, a partition's directory like any other; when nothing is missing in it,
         it holds an empty file `.complete` until it has the log's name.
RULES    1. The copy takes the log's place in three durable steps: it is marked complete, the log's directory is renamed for
            deletion, the copy's gets its name. At any moment one of the two can be found, and nothing else is served.
         2. After a crash, a complete copy without its log gets the name at the start (`finish_moves`). Every other copy
            beside its log is of no use: it is deleted, and whoever wanted it makes it anew.
NOT HERE Copying (replication/partition/log_dir_moves.py), which copies there are (log_manager.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from storage.directories.partition_directory import make
from storage.io.checkpoint_file import TopicPartition
from storage.io.disk import Disk, StorageError
from storage.log.log import Log

FUTURE: Final = "-future"
COMPLETE: Final = ".complete"
_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d{1,10})\.[0-9a-f]{32}-future")


def copy_of(name: str) -> TopicPartition | None:
    """The partition whose copy's directory has this name; None for all other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def begin_copy(disk: Disk, log: Log, topic_id: bytes, start_offset: int) -> None:
    """Make the directory of a copy and its empty log; for a thread, while nobody else knows the log."""
    make(disk, log.path, topic_id)
    log.open()
    log.truncate_fully(start_offset)


def take_place(disk: Disk, log: str, doomed: str, copy: str, name: str) -> None:
    """The three steps of rule 1, for a thread: rename the log's directory to `doomed` and the copy's to `name`."""
    disk.replace_atomically(f"{copy}/{COMPLETE}", b"")
    if disk.exists(log):  # else there was no room for the copy's name
        disk.rename(log, doomed)
    disk.sync_dir(_parent(log))
    _give_name(disk, copy, name)


def finish_moves(disk: Disk, directory: str, directories: Iterable[str]) -> None:
    """Before logs are looked for: finish the moves into one directory that a crash interrupted (rule 2).

    The names in all directories are durable: a log's directory that comes back would lie beside its copy.
    """
    complete = {
        name: f"{key[0]}-{key[1]}"
        for name in disk.listdir(directory)
        if (key := copy_of(name)) is not None and disk.exists(f"{directory}/{name}/{COMPLETE}")
    }
    try:
        known = {name for path in directories for name in disk.listdir(path)} if complete else {}
    except StorageError:
        return  # nobody knows what is missing; whoever reads that directory next is told
    for copy, name in complete.items():
        if name not in known:
            _give_name(disk, f"{directory}/{copy}", f"{directory}/{name}")


def _give_name(disk: Disk, copy: str, name: str) -> None:
    disk.rename(copy, name)
    disk.sync_dir(_parent(name))
    disk.unlink(f"{name}/{COMPLETE}", missing_ok=True)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
