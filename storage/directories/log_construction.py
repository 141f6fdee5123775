"""Constructs the logs of a log directory: those with a partition directory, and those that are only in its commit log.

NOT HERE Deleted logs and copies (log_manager.py), opening a log (storage/log/log.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from storage.config.log_config import LogConfig
from storage.directories.engines import Engines
from storage.directories.log_directory import LogDirectory
from storage.directories.partition_directory import parse_partition_dir_name
from storage.io.deferred_file_ops import FileOp, sequential
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint


def logs_in(disk: Disk, log_dir: LogDirectory, engines: Engines, config: LogConfig) -> Iterator[Log]:
    """The logs of a log directory whose commit log is open; opens none. `config`: until their own is set."""
    checkpoints = log_dir.read_checkpoints()
    for name in log_dir.names:
        key = parse_partition_dir_name(name)
        if key is not None:
            yield Log(
                disk, engines.create, log_dir.path, *key, config, checkpoint=checkpoints.get(key, Checkpoint()),
                is_clean=log_dir.was_clean, summary=log_dir.summaries.pop(name, None),
            )  # fmt: skip
    for topic, partition, topic_id, factory in engines.partitions(log_dir.path):
        yield Log(
            disk, factory, log_dir.path, topic, partition, config, checkpoint=checkpoints.get((topic, partition), Checkpoint()),
            is_clean=log_dir.was_clean, topic_id=topic_id, has_directory=False,
        )  # fmt: skip


def new_log(
    disk: Disk, log_dir: LogDirectory, engines: Engines, topic: str, partition: int, topic_id: bytes, config: LogConfig
) -> Log:
    """A new log in a log directory; `creation` follows."""
    in_commit_log = config.uses_commit_log
    factory = engines.factory_of(topic, partition, topic_id) if in_commit_log else engines.create
    return Log(
        disk,
        factory,
        log_dir.path,
        topic,
        partition,
        config,
        topic_id=topic_id,
        is_new=True,
        has_directory=not in_commit_log,
    )


def creation(log_dir: LogDirectory, engines: Engines, log: Log, topic_id: bytes) -> FileOp | None:
    """The operation that creates a log on disk; None if there is nothing to do."""
    drop = engines.drop_of(log.path, topic_id)
    if not log.files.has_directory:
        return drop
    create = partial(log_dir.create_partition_dir, log.path, topic_id)
    return create if drop is None else sequential([drop, create])
