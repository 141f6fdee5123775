"""Partition directories: names, creation, deletion.

FORMAT   `topic-partition`; with a suffix, the directory is not in service:
             `.<32 hex digits>-delete`  to be deleted (the topic name is truncated to a total of 255 characters)
             `.<32 hex digits>-stray`   of a topic that the cluster does not have; kept for the operator
             `.<32 hex digits>-future`  a copy for a move to this log directory
RULES    1. Before the first flush of its records, a loss of power may remove a new directory: its entry and
            `partition.metadata` become durable with the records, so that creating many costs no sync.
NOT HERE Which partitions belong here (replication), the files inside (the engine, checkpoint_file.py, producer_snapshots.py).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from storage.io.checkpoint_file import PARTITION_METADATA, TopicPartition, partition_metadata
from storage.io.disk import Disk

DELETED: Final = "-delete"
STRAY: Final = "-stray"
FUTURE: Final = "-future"
METADATA_DIRECTORY: Final = "__cluster_metadata-0"

_LONGEST_NAME = 255
_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d{1,10})(?:\.[0-9a-f]{32}(-delete|-stray|-future))?")


class DirName(NamedTuple):
    """What the name of a partition's directory says."""

    partition: TopicPartition
    """In a directory to be deleted, or a stray's, the topic may be truncated."""
    suffix: str
    """DELETED, STRAY or FUTURE; empty for a directory in service."""


def parse_dir_name(name: str) -> DirName | None:
    """The parts of a directory name; None for other names, including the metadata log's."""
    found = _NAME.fullmatch(name)
    if found is None or name == METADATA_DIRECTORY:
        return None
    return DirName((found[1], int(found[2])), found[3] or "")


def parse_partition_dir_name(name: str) -> TopicPartition | None:
    """The partition of a directory in service; None for other names."""
    found = parse_dir_name(name)
    return None if found is None or found.suffix else found.partition


def parse_future_dir_name(name: str) -> TopicPartition | None:
    """The partition of a future replica's directory; None for other names."""
    found = parse_dir_name(name) if name.endswith(FUTURE) else None  # called several times for each name at a start
    return None if found is None else found.partition


def suffixed_dir_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """The name of a directory that is not in service; `unique` is 16 random bytes."""
    end = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: _LONGEST_NAME - len(end)] + end


def create_partition_dir(disk: Disk, path: str, topic_id: bytes) -> None:
    """Create the directory of a new partition."""
    disk.make_dirs(path)
    file = disk.open(f"{path}/{PARTITION_METADATA}", write=True, create=True)
    file.pwrite(partition_metadata(topic_id), 0)
    file.close()


def delete_paths(disk: Disk, files: list[str], directories: list[str]) -> None:
    """Delete files and directory trees."""
    for path in files:
        disk.unlink(path, missing_ok=True)
    for path in directories:
        disk.remove_tree(path)
