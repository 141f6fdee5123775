"""Constructs the logs of a log directory: those with a partition directory, those that are only in its commit log, and copies.

NOT HERE Deleted logs (deletions.py), what becomes of a copy (future_replica.py), opening a log (storage/log/log.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from storage.config.log_config import LogConfig
from storage.directories.engines import Engines
from storage.directories.log_directory import LogDirectory
from storage.directories.partition_directory import parse_partition_dir_name
from storage.io.deferred_file_ops import FileOp, sequential
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_offsets import NEVER_CLEANED, Checkpoint


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


def new_copy(
    disk: Disk,
    log_dir: LogDirectory,
    engines: Engines,
    log: Log,
    start_offset: int,
    config: LogConfig,
    new_path: Callable[[], str],
) -> Log:
    """A future replica of a log; `creation` follows. `new_path` returns a path for its directory, each time another one."""
    topic_id = log.files.topic_id
    assert topic_id is not None, "a log in service has a topic id"
    topic, partition = log.topic, log.partition
    copy = Log(disk, engines.create, log_dir.path, topic, partition, config, topic_id=topic_id, is_new=True)
    while copy.path == f"{log_dir.path}/{copy.name}" or engines.has_frames(copy.path, topic_id):
        copy.files.path = new_path()
    if log.offsets.first_dirty_offset != NEVER_CLEANED:
        copy.offsets.first_dirty_offset = start_offset
    return copy


def creation(log_dir: LogDirectory, engines: Engines, log: Log) -> FileOp | None:
    """The operation that creates a new log on disk; None if there is nothing to do."""
    topic_id = log.files.cached_topic_id
    assert topic_id is not None, "a new log has a topic id"
    drop = engines.drop_of(log.path, topic_id)
    if not log.files.has_directory:
        engines.forget_switch(log_dir.path, topic_id, log.partition)
        return drop
    create = partial(log_dir.create_partition_dir, log.path, topic_id)
    return create if drop is None else sequential([drop, create])
