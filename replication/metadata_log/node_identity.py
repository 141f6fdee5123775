"""The identity of a node in its log directories: cluster id, node id and directory ids.

FORMAT   meta.properties  in every log directory; Java properties: version=1, cluster.id, node.id, directory.id
RULES    1. All directories of a node have the same cluster id and node id, and different directory ids. A directory from before
            Kafka 3.7 has no id; `formatting.py` gives it one.
         2. An empty directory has no identity. Neither has one with files of an interrupted formatting only.
         3. A directory with data but without meta.properties is refused; the error names the file.
         4. A failed log directory is skipped, unless it holds the metadata log or no other directory has the node's identity.
         5. The metadata log must be in the directory that the settings name for it: a second, empty one would lose every topic.
NOT HERE Formatting (`formatting.py`), the lock file (`storage/directories/log_directory.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from replication.metadata.metadata_records import ZERO_SNAPSHOT
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.disk import Disk, StorageError

META_PROPERTIES: Final = "meta.properties"
BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"

_FORMATTING_FILES: Final = {BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, ".lock", "lost+found"}


class UnusableDirectory(Exception):
    """A log directory that this node must not use; the message is a sentence."""


class MetaProperties(NamedTuple):
    """The content of meta.properties."""

    cluster_id: str
    node_id: int
    directory_id: bytes
    """Zero if there is none yet."""


class NodeIdentity(NamedTuple):
    """The node's identity, read from its log directories."""

    cluster_id: str
    node_id: int
    directory_ids: dict[str, bytes]
    """Directory ids by log directory."""
    metadata_directory: str
    """The directory with the metadata log: the first log directory, or metadata.log.dir."""
    failed: Mapping[str, StorageError] = {}  # never modified
    """Log directories that could not be read, with the error."""
    metadata_directory_id: bytes = ZERO_UUID
    """Directory id of the metadata directory."""


def read_node_identity(
    disk: Disk, directories: Sequence[str], *, node_id: int, metadata_directory: str | None = None
) -> NodeIdentity | None:
    """The identity in the log directories; None if none of them is formatted.

    Empty directories beside formatted ones are left out of `directory_ids`. The metadata log is in the first directory, unless
    `metadata_directory` is given.

    Raises:
        UnusableDirectory: the directories contradict each other or `node_id`, or contain unknown data.
        StorageError: a directory failed that rule 4 requires.
    """
    metadata = metadata_directory or directories[0]
    properties, failed = _read_all(disk, dict.fromkeys((*directories, metadata)), metadata)
    if not properties:
        if failed:
            raise next(iter(failed.values()))
        return None
    _check_node(properties, node_id)
    _check_directory_ids(properties)
    _check_metadata_directory(disk, properties, metadata)
    ids = {path: properties[path].directory_id for path in directories if path in properties}
    metadata_id = properties[metadata].directory_id if metadata in properties else ZERO_UUID
    cluster_id = next(iter(properties.values())).cluster_id
    return NodeIdentity(cluster_id, node_id, ids, metadata, failed, metadata_id)


def _read_all(
    disk: Disk, paths: Iterable[str], metadata: str
) -> tuple[dict[str, MetaProperties], dict[str, StorageError]]:
    """The content of each meta.properties, and the failed directories."""
    properties: dict[str, MetaProperties] = {}
    failed: dict[str, StorageError] = {}
    for path in paths:
        try:
            found = read_meta_properties(disk, path)
            if found is not None:
                properties[path] = found
            else:
                _check_unformatted(disk, path)
        except StorageError as error:
            if path == metadata:
                raise
            failed[path] = error
    return properties, failed


def _check_node(properties: Mapping[str, MetaProperties], node_id: int) -> None:
    """Check that all directories belong to this node of one cluster (rule 1)."""
    first_path, first = next(iter(properties.items()))
    for path, found in properties.items():
        if found.cluster_id != first.cluster_id:
            raise UnusableDirectory(
                f"The log directories belong to different clusters: {first_path} to {first.cluster_id}, "
                f"{path} to {found.cluster_id}."
            )
        if found.node_id != node_id:
            raise UnusableDirectory(
                f"{path} belongs to node {found.node_id}, but node.id is {node_id}: set node.id to {found.node_id}, "
                "or give this node a directory of its own."
            )


def _check_directory_ids(properties: Mapping[str, MetaProperties]) -> None:
    """Check that no two directories have the same id (rule 1)."""
    by_id: dict[bytes, str] = {}
    for path, found in properties.items():
        other = by_id.setdefault(found.directory_id, path)
        if other != path and found.directory_id != ZERO_UUID:
            raise UnusableDirectory(
                f"{other} and {path} have the same directory.id {uuid_text(found.directory_id)}: "
                "one is a copy of the other."
            )


def _check_metadata_directory(disk: Disk, formatted: Iterable[str], metadata: str) -> None:
    """Check that the metadata log is not in another of the formatted directories only (rule 5)."""
    if disk.exists(f"{metadata}/{METADATA_DIRECTORY}"):
        return
    other = next((path for path in formatted if disk.exists(f"{path}/{METADATA_DIRECTORY}")), None)
    if other is not None:
        raise UnusableDirectory(
            f"The metadata log is in {other}, and according to the settings it is in {metadata}: name {other} first in "
            "log.dirs, or as metadata.log.dir."
        )


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """The content of meta.properties; None if the file does not exist.

    Raises:
        UnusableDirectory: the file is incomplete or has another version.
    """
    path = f"{directory}/{META_PROPERTIES}"
    if not disk.exists(path):
        return None
    values = _parse_properties(disk.read(path).decode("utf-8", "replace"))
    version = values.get("version")
    if version == "0":
        raise UnusableDirectory(f"{path} was written by a broker that used ZooKeeper: migrate it with Kafka 3.9 first.")
    missing = [name for name in ("version", "cluster.id", "node.id") if not values.get(name)]
    if missing:
        raise UnusableDirectory(f"{path} is incomplete: it lacks {', '.join(missing)}. Restore the file.")
    if version != "1":
        raise UnusableDirectory(f"{path} has version {version}; this broker knows version 1.")
    try:
        directory_id = uuid_from_text(values.get("directory.id") or uuid_text(ZERO_UUID))
        return MetaProperties(values["cluster.id"], int(values["node.id"]), directory_id)
    except ValueError:
        raise UnusableDirectory(
            f"{path} is malformed: its node.id or directory.id is invalid. Restore the file."
        ) from None


def _parse_properties(text: str) -> dict[str, str]:
    values = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, _, value = stripped.partition("=")
        values[name.strip()] = value.strip().replace("\\", "")
    return values


def _check_unformatted(disk: Disk, directory: str) -> None:
    """Check that an unformatted directory is empty, or has files of an interrupted formatting only (rules 2 and 3)."""
    if not disk.exists(directory):
        return
    if not disk.is_dir(directory):
        raise UnusableDirectory(f"{directory} is a file, not a directory.")
    found = sorted(name for name in disk.listdir(directory) if not name.endswith(".tmp"))
    unexpected = [name for name in found if name not in _FORMATTING_FILES]
    if METADATA_DIRECTORY in found:
        metadata = f"{directory}/{METADATA_DIRECTORY}"
        allowed = str(ZERO_SNAPSHOT)
        unexpected += [
            f"{METADATA_DIRECTORY}/{name}"
            for name in sorted(disk.listdir(metadata))
            if name != allowed and not name.endswith(".tmp")
        ]
    if unexpected:
        raise UnusableDirectory(
            f"{directory} holds {unexpected[0]} but no {META_PROPERTIES}, so its cluster is unknown: "
            "restore that file, or choose an empty directory."
        )
