"""`barnabas format`: formats empty directories, with the messages of `kafka-storage format`.

RULES    1. A formatted directory is refused, or skipped with --ignore-formatted.
         2. The cluster id is always required: all nodes need the same one.
         3. If the directory of the metadata log is new beside formatted ones, as after its disk was replaced, other controllers
            must have the log: this node does not start a quorum.
NOT HERE The options (`broker/node/format_options.py`), the files (`replication/metadata_log/formatting.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.node.format_options import random_uuid, resolve_format_options, version_name
from broker.peers.endpoints import controller_endpoints, quorum_address
from broker.peers.quorum_config import has_other_controllers, load_quorum_config
from broker.process.timer import wall_ms
from protocol.primitives import ZERO_UUID
from replication.metadata_log.formatting import FormatOptions, format_directories
from replication.metadata_log.node_identity import UnusableDirectory, read_node_identity
from storage.directories.log_directory import lock_directories
from storage.io.disk import Disk
from storage.io.file_lock import FileLock


def format_node(config: BrokerConfig, options: FormatOptions, *, ignore_formatted: bool) -> Iterator[str]:
    """Formats the log directories of a node; yields a message for each.

    Raises:
        ConfigError: settings and options contradict each other.
        UnusableDirectory: a directory must not be formatted.
        StorageError: the disk failed, or another process holds a lock.
    """
    quorum_config = load_quorum_config(config)
    options = resolve_format_options(options, config, quorum_config)
    if options.cluster_id is None:
        raise ConfigError(
            f"--cluster-id is missing: all nodes of a cluster need the same id; a new one is {random_uuid()}"
        )
    disk, locks = Disk(), list[FileLock]()
    directories = [os.path.abspath(path) for path in config.log_dirs]
    metadata = os.path.abspath(config.metadata_log_dir)
    identity = read_node_identity(disk, directories, node_id=config.node_id, metadata_directory=metadata)
    known = set() if identity is None else set(identity.directory_ids)
    if identity is not None and identity.metadata_directory_id != ZERO_UUID:
        known.add(metadata)
    if identity is not None and identity.cluster_id != options.cluster_id:
        path = next(iter(known))
        raise UnusableDirectory(
            f"Invalid cluster.id in: {path}/meta.properties. Expected {options.cluster_id}, but read {identity.cluster_id}"
        )
    if known and not ignore_formatted:
        raise UnusableDirectory(
            f"Log directory {min(known)} is already formatted. Use --ignore-formatted to ignore this directory and format "
            "the others."
        )
    new = [path for path in dict.fromkeys((metadata, *directories)) if path not in known]
    if not new:
        yield "All of the log directories are already formatted."
        return
    try:
        for path in new:
            disk.make_dirs(path)
        locks += lock_directories(disk, new)
        format_directories(
            disk,
            directories,
            config.node_id,
            options,
            identity=identity,
            metadata_directory=metadata,
            controller=quorum_address(controller_endpoints(config, config.controller_listeners)),
            random_bytes=secrets.token_bytes,
            wall_ms=wall_ms(),
            has_metadata_elsewhere=has_other_controllers(config, quorum_config) and not _is_initial(config, options),
        )
    finally:
        for lock in locks:
            lock.release()
    level = version_name(options.features[0][1])
    for path in new:
        yield f"Formatting {_kind(config, options, is_metadata=path == metadata)} {path} with metadata.version {level}."


def _is_initial(config: BrokerConfig, options: FormatOptions) -> bool:
    """Whether this node is one of the first voters of a new quorum."""
    return options.is_standalone or config.node_id in {one.node_id for one in options.controllers}


def _kind(config: BrokerConfig, options: FormatOptions, *, is_metadata: bool) -> str:
    if not is_metadata:
        return "data directory"
    if _is_initial(config, options):
        return "dynamic metadata voter directory"
    return "dynamic metadata directory" if options.controllers else "metadata directory"
