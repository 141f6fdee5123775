"""Partition directories by name: whose they are, what a dying one is called, how a new one is made and made durable.

FORMAT   `topic-partition`; with a suffix, the directory is not in service:
             `.<32 hex digits>-delete`  to be deleted (the topic's name cut so that the whole has 255 characters)
             `.<32 hex digits>-stray`   of a topic that the cluster does not have; kept for a person to look at
             `.<32 hex digits>-future`  a copy that was on its way to this log directory
RULES    1. Until its first records are flushed, a new directory may be lost with the power: its name and its
            `partition.metadata` become durable together with them, so that making many costs no sync.
NOT HERE Which partitions belong here (replication), the files inside (the engine, checkpoint_file.py, producer_snapshots.py).
"""

from __future__ import annotations

import re
from typing import Final

from storage.io.checkpoint_file import PARTITION_METADATA, TopicPartition, partition_metadata
from storage.io.disk import Disk

DELETED: Final = "-delete"
STRAY: Final = "-stray"
METADATA_LOG: Final = "__cluster_metadata-0"

_LONGEST_NAME = 255
_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d{1,10})")


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for all other names, the metadata log's among them."""
    found = _NAME.fullmatch(name)
    if found is None or name == METADATA_LOG:
        return None
    return found[1], int(found[2])


def aside_name(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """What a directory is called that is taken out of service; `unique` is 16 random bytes."""
    end = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: _LONGEST_NAME - len(end)] + end


def make(disk: Disk, path: str, topic_id: bytes) -> None:
    """Make the directory of a new partition."""
    disk.make_dirs(path)
    file = disk.open(f"{path}/{PARTITION_METADATA}", write=True, create=True)
    file.pwrite(partition_metadata(topic_id), 0)
    file.close()


def remove(disk: Disk, files: list[str], directories: list[str]) -> None:
    """Delete files that are out of use, and whole directories."""
    for path in files:
        disk.unlink(path, missing_ok=True)
    for path in directories:
        disk.remove_tree(path)
