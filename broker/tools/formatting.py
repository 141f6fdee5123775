"""`barnabas format`: empty directories are made ready, as `kafka-storage format` does, with its sentences.

RULES    1. A directory that is formatted already is refused, or, with --ignore-formatted, left alone.
         2. A cluster's id is always named here: all of its nodes need the same one.
NOT HERE What the options mean (`broker/node/format_options.py`), what is written (`replication/metadata_log/formatting.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.node.format_options import Founding, settled, version_name
from broker.peers.local_endpoints import own_controller
from broker.peers.quorum_config import quorum_places
from broker.process.timer import SystemClock
from protocol.primitives import ZERO_UUID
from replication.metadata_log.formatting import UnusableDirectory, format_directories, identify
from storage.directories.directory_locks import lock_directories
from storage.io.disk import Disk, Lock


def format_node(config: BrokerConfig, asked: Founding, *, ignore_formatted: bool) -> Iterator[str]:
    """Format the log directories of a node; the sentences that say what was done.

    Raises:
        ConfigError: settings and options do not go together.
        UnusableDirectory: a directory must not be formatted.
        StorageError: the disk failed, or somebody else has a directory.
    """
    asked = settled(asked, config, quorum_places(config))
    if asked.cluster_id is None:
        raise ConfigError("--cluster-id is missing: all nodes of a cluster are formatted for the same id")
    disk, locks = Disk(), list[Lock]()
    directories = [os.path.abspath(path) for path in config.log_dirs]
    metadata = os.path.abspath(config.metadata_log_dir)
    identity = identify(disk, directories, node_id=config.node_id, metadata_directory=metadata)
    known = set() if identity is None else set(identity.directory_ids)
    if identity is not None and identity.metadata_directory_id != ZERO_UUID:
        known.add(metadata)
    if identity is not None and identity.cluster_id != asked.cluster_id:
        path = next(iter(known))
        raise UnusableDirectory(
            f"Invalid cluster.id in: {path}/meta.properties. Expected {asked.cluster_id}, but read {identity.cluster_id}"
        )
    for path in sorted(known) if not ignore_formatted else ():
        raise UnusableDirectory(
            f"Log directory {path} is already formatted. Use --ignore-formatted to ignore this directory and format the others."
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
            node_id=config.node_id,
            identity=identity,
            metadata_directory=metadata,
            cluster_id=asked.cluster_id,
            controller=own_controller(config, config.controller_listeners),
            is_standalone=asked.is_standalone,
            initial_controllers=asked.controllers,
            features=asked.features,
            random_bytes=secrets.token_bytes,
            wall_ms=SystemClock().wall_ms(),
        )
    finally:
        for lock in locks:
            lock.release()
    level = version_name(asked.features[0][1])
    for path in new:
        yield f"Formatting {_kind(config, asked, is_metadata=path == metadata)} {path} with metadata.version {level}."


def _kind(config: BrokerConfig, asked: Founding, *, is_metadata: bool) -> str:
    if not is_metadata:
        return "data directory"
    if asked.is_standalone or config.node_id in {one.node_id for one in asked.controllers}:
        return "dynamic metadata voter directory"
    return "dynamic metadata directory" if asked.controllers else "metadata directory"
