"""Future replicas of the logs of a log manager: created, registered, dropped, or put in place of their logs.

RULES    1. A future replica is in `LogManager.future_logs` from its creation on disk to the swap; until then it is not in
            `LogManager.logs` and gets no periodic work.
         2. When it replaces its log, the checkpoints are written before the renames. The replaced log keeps its offsets in its
            log directory until it is gone (log_directory.py rule 5).
         3. The directory of the replaced log is deleted like that of a deleted log (deletions.py).
NOT HERE Copying (log_copy.py), the swap on disk (future_replica.py), when a log moves (replication/partition/log_dir_moves.py,
         conversion.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import Work
from storage.directories.future_replica import checkpoints_of_swap, create_future_log, swap_in_future_log
from storage.directories.log_construction import creation, new_copy
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import DELETED, FUTURE
from storage.io.checkpoint_file import TopicPartition
from storage.io.deferred_file_ops import no_op, sequential
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint


def take_interrupted_moves(manager: LogManager) -> list[tuple[TopicPartition, str]]:
    """The logs that were moving at the last stop, with their targets; returned once, their copies are deleted."""
    found, manager.interrupted_moves = manager.interrupted_moves, []
    moves: dict[TopicPartition, str] = {}
    for key, path in found:
        if key in manager.logs:  # else the log may be in a missing directory: left to the operator
            moves[key] = path.rpartition("/")[0]
            manager.deletions.submit_copy(path, key)
    return list(moves.items())


def new_future_log(
    manager: LogManager, log: Log, directory: str, start_offset: int, config: LogConfig | None = None
) -> tuple[Log, Work]:
    """An empty future replica and the work that creates it on disk; `add_future_log` follows.

    `config`: of the copy, which chooses its engine; None: that of the log. Raises StorageError if the directory is offline.
    """
    log_dir, key = manager.placement.in_service(directory), (log.topic, log.partition)
    new_path = partial(manager.deletions.new_path, log_dir.path, key, FUTURE)
    copy = new_copy(manager.disk, log_dir, manager.engines, log, start_offset, config or log.config, new_path)
    create = creation(log_dir, manager.engines, copy)
    assert create is not None, "a copy has a directory"
    return copy, partial(create_future_log, create, copy, start_offset)


def add_future_log(manager: LogManager, copy: Log) -> None:
    """Register a future replica that is on disk."""
    manager.attach(copy)
    manager.future_logs[copy.topic, copy.partition] = copy


def drop_future_log(manager: LogManager, copy: Log) -> None:
    """Delete a future replica, also one that was not added."""
    manager.future_logs = {key: other for key, other in manager.future_logs.items() if other is not copy}
    copy.delete()
    manager.deletions.add(copy.directory, manager.deletions.submit_rename(copy, DELETED), has_delay=False)


def replace_with_future_log(manager: LogManager, log: Log, copy: Log) -> None:
    """Replace a log by its complete, durable and closed future replica (future_replica.py rule 1)."""
    replace_with_future_logs(manager, [(log, copy)])


def replace_with_future_logs(manager: LogManager, pairs: Sequence[tuple[Log, Log]]) -> None:
    """The same for several logs: a checkpoint contains all logs of a directory, so one is written for all of these."""
    swaps: list[Callable[[], None]] = []
    checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = defaultdict(dict)
    for log, copy in pairs:
        checkpoints[copy.directory].update(checkpoints_of_swap(log, copy))
        swaps.append(_put_in_place(manager, log, copy))
    for directory, of_copies in checkpoints.items():
        manager.write_checkpoints(manager.directories[directory], of_copies)
    for swap in swaps:
        swap()


def _put_in_place(manager: LogManager, log: Log, copy: Log) -> Callable[[], None]:
    """Put a copy in the place of its log, in memory; returns what does that on disk, after the checkpoint."""
    key = (log.topic, log.partition)
    deleted_files = manager.deletions.new_path(log.directory, key, DELETED)
    future_path, copy.files.path = copy.path, f"{copy.directory}/{copy.name}"
    drop = manager.engines.drop_of(log.path, log.files.cached_topic_id)
    manager.engines.switch(future_path, copy.path, copy.files.cached_topic_id)
    previous_dir, log_dir = manager.directories[log.directory], manager.directories[copy.directory]
    if log_dir is not previous_dir:
        previous_dir.keep_checkpoint(log)
    log.delete()
    del manager.future_logs[key], previous_dir.logs[key]
    manager.logs[key] = log_dir.logs[key] = copy

    def swap() -> None:
        manager.submit_directory_op(copy.directory, partial(manager.path_guard.wait_for_users, log.files))
        # The frames of a log without a directory are dropped before the renames, those of others after them.
        drop_first, drop_last = (None, drop) if log.files.has_directory else (drop, None)
        work = partial(swap_in_future_log, manager.disk, log.path, deleted_files, future_path, copy.path, drop_first)
        rename = sequential([work, partial(previous_dir.forget_checkpoint, key)])
        renamed = manager.deletions.submit_removal(copy.directory, rename, drop_last, deleted_files)
        # So that the log is not opened before the rename.
        copy.files.submit_op(no_op, partial(manager.submit_directory_op, copy.directory))
        manager.deletions.add(log.directory, renamed, has_delay=True)

    return swap
