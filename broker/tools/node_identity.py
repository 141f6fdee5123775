"""The node that a list of log directories belongs to.

RULES    1. All directories must be formatted for the same node; the one with the metadata log is found by its contents.
         2. `metadata.log.dir` may name a directory for the metadata log alone. It is no log directory: no checkpoint and no
            clean-shutdown marker are written there, because no start would read or delete them.
         3. Only the user that has formatted the directories changes them (`check_user`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replication.metadata_log.node_identity import (
    META_PROPERTIES,
    UnusableDirectory,
    read_meta_properties,
    read_node_identity,
)
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import METADATA_DIRECTORY, parse_partition_dir_name
from storage.inspection.commit_log_check import has_commit_log
from storage.io.checkpoint_file import RECOVERY_POINTS
from storage.io.disk import Disk


class CannotCheck(Exception):
    """The directories cannot be checked; the message is a sentence."""


class Node(NamedTuple):
    """The node of the log directories."""

    cluster_id: str
    node_id: int
    directory_ids: dict[str, bytes]
    """Of all directories, by path."""
    log_directories: dict[str, bytes]
    """The same without a directory of the metadata log alone (rule 2)."""
    metadata_directory: str
    has_metadata: bool
    """Whether the metadata log is in one of the directories."""


def read_identity(disk: Disk, directories: Sequence[str]) -> Node:
    """Reads the identity of the node.

    Raises:
        UnusableDirectory: a directory has no identity, or they contradict each other.
        StorageError: a directory is unreadable.
    """
    first = read_meta_properties(disk, directories[0])
    with_metadata = [path for path in directories if disk.is_dir(f"{path}/{METADATA_DIRECTORY}")]
    where = with_metadata[0] if with_metadata else directories[0]
    node_id = -1 if first is None else first.node_id
    identity = read_node_identity(disk, directories, node_id=node_id, metadata_directory=where)
    for failure in [] if identity is None else identity.failed.values():
        raise failure
    if identity is None or len(identity.directory_ids) < len(directories):
        missing = [path for path in directories if identity is None or path not in identity.directory_ids]
        raise UnusableDirectory(f"{missing[0]} has no meta.properties: its node is unknown.")
    ids = identity.directory_ids
    logs = {path: id_ for path, id_ in ids.items() if path != where or len(ids) == 1 or _is_log_directory(disk, path)}
    return Node(identity.cluster_id, identity.node_id, ids, logs, where, bool(with_metadata))


def _is_log_directory(disk: Disk, path: str) -> bool:
    """Whether a directory has what only log directories have."""
    return has_commit_log(disk, path) or any(
        name in {CLEAN_SHUTDOWN, RECOVERY_POINTS} or parse_partition_dir_name(name) is not None
        for name in disk.listdir(path)
    )


def check_user(directories: Iterable[str]) -> None:
    """Refuse to change directories of another user, such as those of a service, as root: the node could not read new files.

    Raises:
        CannotCheck: they are another user's.
    """
    for path in directories:
        owner = os.stat(f"{path}/{META_PROPERTIES}").st_uid
        if owner != os.geteuid():
            raise CannotCheck(
                f"The node of {path} runs as user {owner}, which must own all files in it, and this command as user "
                f"{os.geteuid()}: run it as that user, as with sudo -u '#{owner}'."
            )


def log_dir_paths(disk: Disk, directories: Sequence[str]) -> list[str]:
    """The absolute paths of the directories.

    Raises:
        CannotCheck: one is not a directory.
    """
    found = [os.path.abspath(path) for path in directories]
    for path in found:
        if not disk.is_dir(path):
            raise CannotCheck(f"{path} is not a directory.")
    return list(dict.fromkeys(found))
