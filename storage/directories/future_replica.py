"""The future replica of a log that moves to another log directory: directory name, creation, swap (Kafka: future log).

FORMAT   `topic-partition.<32 hex digits>-future`, otherwise a normal partition directory; a complete copy
         has an empty file `.complete` until it is renamed.
RULES    1. The swap has three durable steps: mark the copy complete, rename the log's directory for deletion (a log of a commit
            log without a directory is dropped), rename the copy's. At any time one of the two is found, and only one is used.
         2. After a crash, a complete copy without its log is renamed at the start (`finish_interrupted_moves`). If a log
            directory is offline, it may contain the log: the partition stays offline. Any other copy is deleted, and the
            move starts again.
NOT HERE Copying (log_copy.py), the list of copies (future_logs.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from storage.directories.partition_directory import parse_future_dir_name
from storage.io.checkpoint_file import TopicPartition
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint

COMPLETE: Final = ".complete"


def incarnation_of(name: str) -> int | None:
    """The incarnation of the frames of a future replica in a commit log; None for other names. Not 0."""
    if parse_future_dir_name(name) is None:
        return None
    digits = name.rpartition(".")[2]
    return int(digits[:8], 16) >> 1 or 1


def create_future_log(create_dir: FileOp, log: Log, start_offset: int) -> None:
    """Create a future replica's directory and empty log; in a thread, before the log is shared."""
    create_dir()
    log.open().truncate_fully(start_offset)


def swap_in_future_log(
    disk: Disk, log: str, deleted_path: str, future: str, name: str, drop: FileOp | None = None
) -> None:
    """The swap of rule 1, in a thread: rename the log's directory to `deleted_path` and the future replica's to `name`.

    `drop`: deletes a log without a directory, durably.
    """
    disk.replace_atomically(f"{future}/{COMPLETE}", b"")
    if drop is not None:
        drop()
    elif disk.exists(log):  # else a previous attempt failed after this step
        disk.rename(log, deleted_path)
    disk.sync_dir(os.path.dirname(log))
    _rename_to_log(disk, future, name)


def checkpoints_of_swap(log: Log, copy: Log) -> dict[TopicPartition, Checkpoint]:
    """What to checkpoint before the swap: within a log directory it is the log's after a crash before the renames."""
    known = copy.checkpoint
    if copy.directory == log.directory:
        known = known._replace(recovery_point=min(known.recovery_point, log.recovery_point))
    return {(log.topic, log.partition): known}


def finish_interrupted_moves(
    disk: Disk, directory: str, names: Mapping[str, list[str]], has_log: Callable[[TopicPartition], bool]
) -> None:
    """Finish the moves into a log directory that a crash interrupted (rule 2); `names` are the entries by log directory.

    `has_log`: whether a commit log contains a partition without a directory. The entries of all directories must be
    durable: a log's directory that reappears would duplicate its copy.
    """
    for copy, key in copies_without_log(disk, directory, names, has_log):
        name = f"{key[0]}-{key[1]}"
        _rename_to_log(disk, f"{directory}/{copy}", f"{directory}/{name}")
        names[directory].remove(copy)
        names[directory].append(name)


def copies_without_log(
    disk: Disk, directory: str, names: Mapping[str, list[str]], has_log: Callable[[TopicPartition], bool]
) -> Iterator[tuple[str, TopicPartition]]:
    """Name and partition of each complete copy in a log directory whose log is in none of them; lazy."""
    for name in list(names[directory]):
        key = parse_future_dir_name(name)
        if key is None or not disk.exists(f"{directory}/{name}/{COMPLETE}"):
            continue
        if not any(f"{key[0]}-{key[1]}" in others for others in names.values()) and not has_log(key):
            yield name, key


def _rename_to_log(disk: Disk, future: str, name: str) -> None:
    disk.rename(future, name)
    disk.sync_dir(os.path.dirname(name))
    disk.unlink(f"{name}/{COMPLETE}", missing_ok=True)
