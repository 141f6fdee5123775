"""The log directories of this node: known or formatted, and locked, before anything in them changes.

RULES    1. What is not understood is refused before anything changes.
         2. A directory whose disk has failed is done without, unless it holds the metadata log, is held by another process, or
            is full.
         3. The directories of a cluster of several nodes are formatted for the id that they are given.
NOT HERE What is in the files (`replication/metadata_log/formatting.py`, `replication/metadata_log/metadata_replay.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.node.format_options import Founding, settled
from broker.peers.quorum_config import QuorumPlaces, knows_others
from replication.metadata_log.formatting import (
    ControllerEndpoint,
    Identity,
    UnusableDirectory,
    format_directories,
    identify,
)
from replication.metadata_log.metadata_log_check import refuse_a_loss
from replication.metadata_log.metadata_replay import Replayed, read_metadata
from storage.directories.directory_locks import lock_directories
from storage.io.disk import Disk, Lock, StorageError


class Home(NamedTuple):
    """What a node found in its directories."""

    identity: Identity
    found: Replayed | None
    """The metadata; None in directories that were formatted just now."""


def take_directories(
    config: BrokerConfig,
    disk: Disk,
    places: QuorumPlaces,
    asked: Founding,
    controller: ControllerEndpoint,
    locks: list[Lock],
    wall_ms: int,
) -> Home:
    """Take the directories of the settings.

    Args:
        config: of this node.
        disk: the file system.
        places: where the controllers are.
        asked: how to format empty directories, as far as that was said.
        controller: where this node's controller is reached.
        locks: gets those that are taken, also when this fails.
        wall_ms: now.

    Raises:
        ConfigError: they are to be formatted, and the settings contradict what was said, or not enough was said.
        UnusableDirectory: they must not be touched.
        UnreadableMetadata: they hold what this node does not understand.
        StorageError: what rule 2 cannot do without.
    """
    directories = [os.path.abspath(path) for path in config.log_dirs]
    metadata = os.path.abspath(config.metadata_log_dir)
    identity = identify(disk, directories, node_id=config.node_id, metadata_directory=metadata)
    found = None
    if identity is None:
        asked = settled(asked, config, places)
        if asked.cluster_id is None and ((asked.is_said and not asked.is_standalone) or knows_others(config, places)):
            raise UnusableDirectory(
                f"{directories[0]} is not formatted, and a cluster of several nodes needs one id: name it with --cluster-id."
            )
        _lock(disk, directories, metadata, {}, locks)
    else:
        if asked.cluster_id not in (None, identity.cluster_id):
            raise UnusableDirectory(
                f"{directories[0]} belongs to cluster {identity.cluster_id}, but --cluster-id says {asked.cluster_id}."
            )
        found = read_metadata(disk, identity)
        refuse_a_loss(disk, identity, found)
        identity = identity._replace(failed=_lock(disk, directories, metadata, identity.failed, locks))
    identity = format_directories(
        disk,
        directories,
        node_id=config.node_id,
        identity=identity,
        metadata_directory=metadata,
        cluster_id=asked.cluster_id,
        controller=controller,
        is_standalone=asked.is_standalone,
        initial_controllers=asked.controllers,
        features=asked.features,
        random_bytes=secrets.token_bytes,
        wall_ms=wall_ms,
    )
    return Home(identity, found)


def _lock(
    disk: Disk, directories: list[str], metadata: str, failed: Mapping[str, StorageError], locks: list[Lock]
) -> Mapping[str, StorageError]:
    """Take the directories, which are made where they are missing; all that have failed by then."""
    lost = dict(failed)
    for path in dict.fromkeys((*directories, metadata)):
        if path in lost:
            continue
        try:
            disk.make_dirs(path)
            locks += lock_directories(disk, [path])
        except StorageError as error:
            if path == metadata or error.is_held or error.is_full:
                raise
            lost[path] = error
    return lost
