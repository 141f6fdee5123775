"""The future replica of a log that moves to another log directory: directory name, creation, swap (Kafka: future log).

FORMAT   `topic-partition.<32 hex digits>-future`, otherwise a normal partition directory; a complete copy
         has an empty file `.complete` until it is renamed.
RULES    1. The swap has three durable steps: mark the copy complete, rename the log's directory for
            deletion, rename the copy's. At any time one of the two is found, and only one is used.
         2. After a crash, a complete copy without its log is renamed at the start (`finish_interrupted_moves`). Any other
            copy is deleted, and the move starts again.
NOT HERE Copying (replication/partition/log_dir_moves.py), the list of copies (log_manager.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from storage.directories.partition_directory import create_partition_dir
from storage.io.checkpoint_file import TopicPartition
from storage.io.disk import Disk, StorageError
from storage.log.log import Log

FUTURE: Final = "-future"
COMPLETE: Final = ".complete"
_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d{1,10})\.[0-9a-f]{32}-future")


def parse_future_dir_name(name: str) -> TopicPartition | None:
    """The partition of a future replica's directory name; None for other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def create_future_log(disk: Disk, log: Log, topic_id: bytes, start_offset: int) -> None:
    """Create a future replica's directory and empty log; in a thread, before the log is shared."""
    create_partition_dir(disk, log.path, topic_id)
    log.open().truncate_fully(start_offset)


def swap_in_future_log(disk: Disk, log: str, deleted_path: str, future: str, name: str) -> None:
    """The swap of rule 1, in a thread: rename the log's directory to `deleted_path` and the future replica's to `name`."""
    disk.replace_atomically(f"{future}/{COMPLETE}", b"")
    if disk.exists(log):  # else a previous attempt failed after this step
        disk.rename(log, deleted_path)
    disk.sync_dir(os.path.dirname(log))
    _rename_to_log(disk, future, name)


def finish_interrupted_moves(disk: Disk, directory: str, directories: Iterable[str]) -> None:
    """At the start, finish the moves into one directory that a crash interrupted (rule 2).

    The entries of all directories must be durable: a log's directory that reappears would duplicate its copy.
    """
    complete = {
        name: f"{key[0]}-{key[1]}"
        for name in disk.listdir(directory)
        if (key := parse_future_dir_name(name)) is not None and disk.exists(f"{directory}/{name}/{COMPLETE}")
    }
    try:
        known = {name for path in directories for name in disk.listdir(path)} if complete else {}
    except StorageError:
        return  # an unreadable directory may contain the log; the next access reports the error
    for future, name in complete.items():
        if name not in known:
            _rename_to_log(disk, f"{directory}/{future}", f"{directory}/{name}")


def _rename_to_log(disk: Disk, future: str, name: str) -> None:
    disk.rename(future, name)
    disk.sync_dir(os.path.dirname(name))
    disk.unlink(f"{name}/{COMPLETE}", missing_ok=True)
