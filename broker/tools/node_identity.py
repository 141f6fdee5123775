"""Whose the directories are that a tool was given.

RULES    1. They must be a node's own, all of them formatted; which of them has the metadata log is found by looking.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from replication.metadata_log.formatting import METADATA_DIRECTORY, UnusableDirectory, identify, read_meta_properties
from storage.io.disk import Disk


class NothingToLookAt(Exception):
    """What was named is no log directory; the message is a sentence."""


class Node(NamedTuple):
    """The node whose log directories these are."""

    cluster_id: str
    node_id: int
    directory_ids: dict[str, bytes]
    metadata_directory: str
    has_metadata: bool
    """Whether the directory of the metadata log is among them."""


def know(disk: Disk, directories: Sequence[str]) -> Node:
    """Whose they are.

    Raises:
        UnusableDirectory: they do not say so, or contradict each other.
        StorageError: they cannot be read.
    """
    first = read_meta_properties(disk, directories[0])
    identity = identify(disk, directories, node_id=-1 if first is None else first.node_id)
    for failure in [] if identity is None else identity.failed.values():
        raise failure
    if identity is None or len(identity.directory_ids) < len(directories):
        missing = [path for path in directories if identity is None or path not in identity.directory_ids]
        raise UnusableDirectory(f"{missing[0]} has no meta.properties: it is not clear whose it is.")
    with_metadata = [path for path in directories if disk.is_dir(f"{path}/{METADATA_DIRECTORY}")]
    where = with_metadata[0] if with_metadata else directories[0]
    return Node(identity.cluster_id, identity.node_id, identity.directory_ids, where, bool(with_metadata))


def absolute(disk: Disk, directories: Sequence[str]) -> list[str]:
    """The directories by their whole names.

    Raises:
        NothingToLookAt: one of them is none.
    """
    found = [os.path.abspath(path) for path in directories]
    for path in found:
        if not disk.is_dir(path):
            raise NothingToLookAt(f"{path} is no directory.")
    return list(dict.fromkeys(found))
