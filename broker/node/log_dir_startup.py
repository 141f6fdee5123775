"""The log directories at startup: identified or formatted, and locked, before anything in them changes.

RULES    1. Unknown contents are refused before anything changes.
         2. A directory whose disk has failed is skipped, unless it holds the metadata log, is locked by another process, or is
            full.
         3. In a cluster of several nodes, directories are formatted only for an explicit cluster id.
         4. A clean-shutdown marker in a directory of the metadata log alone is deleted: no shutdown has written it.
NOT HERE The files (`replication/metadata_log/formatting.py`, `replication/metadata_log/metadata_replay.py`).
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.node.format_options import random_uuid, resolve_format_options
from broker.peers.quorum_config import QuorumConfig, has_other_controllers
from replication.metadata_log.formatting import FormatOptions, format_directories
from replication.metadata_log.metadata_log_check import check_for_loss
from replication.metadata_log.metadata_replay import ReplayedMetadata, read_metadata
from replication.metadata_log.node_identity import NodeIdentity, UnusableDirectory, read_node_identity
from replication.raft.voters import ListenerAddress
from storage.directories.log_directory import CLEAN_SHUTDOWN, lock_directories
from storage.io.disk import Disk, StorageError
from storage.io.file_lock import FileLock


class StartupState(NamedTuple):
    """The contents of a node's directories."""

    identity: NodeIdentity
    replayed: ReplayedMetadata | None
    """The metadata; None if the directories were just formatted."""


def open_log_dirs(
    config: BrokerConfig,
    disk: Disk,
    quorum_config: QuorumConfig,
    options: FormatOptions,
    controller: ListenerAddress,
    locks: list[FileLock],
    wall_ms: int,
) -> StartupState:
    """Identifies, formats and locks the log directories; `locks` receives the acquired locks, also if this fails.

    Raises:
        ConfigError: they need formatting, and settings and options contradict each other or are incomplete.
        UnusableDirectory: they belong to another node or cluster, or are inconsistent.
        UnreadableMetadata: this release cannot read the metadata.
        StorageError: a directory failed that rule 2 does not skip.
    """
    directories = [os.path.abspath(path) for path in config.log_dirs]
    metadata = os.path.abspath(config.metadata_log_dir)
    identity = read_node_identity(disk, directories, node_id=config.node_id, metadata_directory=metadata)
    replayed = None
    if identity is None:
        options = resolve_format_options(options, config, quorum_config)
        is_shared = has_other_controllers(config, quorum_config) or (options.names_voters and not options.is_standalone)
        if is_shared and options.cluster_id is None:
            raise UnusableDirectory(
                f"{directories[0]} is not formatted, and all nodes of a cluster need the same id: name it with --cluster-id; "
                f"a new one is {random_uuid()}."
            )
        _lock_directories(disk, directories, metadata, {}, locks)
    else:
        if options.cluster_id not in (None, identity.cluster_id):
            raise UnusableDirectory(
                f"{directories[0]} belongs to cluster {identity.cluster_id}, but --cluster-id says {options.cluster_id}."
            )
        replayed = read_metadata(disk, identity)
        is_only_controller = "controller" in config.roles and not has_other_controllers(config, quorum_config)
        check_for_loss(disk, identity, replayed, is_only_controller=is_only_controller)
        identity = identity._replace(failed=_lock_directories(disk, directories, metadata, identity.failed, locks))
        if metadata not in directories:
            disk.unlink(f"{metadata}/{CLEAN_SHUTDOWN}", missing_ok=True)
    identity = format_directories(
        disk,
        directories,
        config.node_id,
        options,
        identity=identity,
        metadata_directory=metadata,
        controller=controller,
        random_bytes=secrets.token_bytes,
        wall_ms=wall_ms,
    )
    return StartupState(identity, replayed)


def describe_start_error(error: StorageError) -> str:
    """The sentence of an error at startup, with what to do about a lock or a missing permission."""
    if error.is_locked:
        return f"{error} Stop it, or choose another directory."
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return str(error)
    user = f"user {os.geteuid()}, group {os.getegid()}"
    return f"{error} This process runs as {user}, which must own the log directories and all files in them."


def _lock_directories(
    disk: Disk, directories: list[str], metadata: str, failed: Mapping[str, StorageError], locks: list[FileLock]
) -> Mapping[str, StorageError]:
    """Creates and locks the directories; returns the failed ones."""
    failed_now = dict(failed)
    for path in dict.fromkeys((*directories, metadata)):
        if path in failed_now:
            continue
        try:
            disk.make_dirs(path)
            locks += lock_directories(disk, [path])
        except StorageError as error:
            if path == metadata or error.is_locked or error.is_full:
                raise
            failed_now[path] = error
    return failed_now
