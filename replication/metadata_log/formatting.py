"""Formatting empty log directories exactly like `kafka-storage format`.

FORMAT   meta.properties       in every log directory (`node_identity.py`)
         bootstrap.checkpoint  in every log directory; a snapshot of the features and SCRAM credentials that the first
                               controller copies into the metadata log
         __cluster_metadata-0/00000000000000000000-0000000000.checkpoint
                               in the metadata directory; a snapshot without data records, with the control records
                               KRaftVersion 1 and Voters: this node alone, or the initial controllers. It does not exist
                               if the voters are configured or the node joins as an observer
RULES    1. meta.properties is written last: a directory that has it is formatted, and an interrupted formatting is
            repeated.
NOT HERE Reading the identity (`node_identity.py`), the metadata log (`metadata_log.py`), elections
         (`quorum_state_store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocol.messages import stored_records
from protocol.primitives import ZERO_UUID, new_uuid, uuid_text
from protocol.schema import Message
from replication.metadata.feature_levels import METADATA_VERSION, WITH_DYNAMIC_VOTERS
from replication.metadata.metadata_records import ZERO_SNAPSHOT, snapshot
from replication.metadata_log.control_state import to_record, voter_records
from replication.metadata_log.node_identity import (
    BOOTSTRAP_CHECKPOINT,
    META_PROPERTIES,
    MetaProperties,
    NodeIdentity,
    UnusableDirectory,
    read_meta_properties,
)
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.disk import Disk

METADATA_VERSION_LEVEL = 30
"""4.3-IV0."""
FINALIZED_FEATURES: tuple[tuple[str, int], ...] = (
    (METADATA_VERSION, METADATA_VERSION_LEVEL),
    ("eligible.leader.replicas.version", 1),
    ("group.version", 1),
    ("share.version", 1),
    ("streams.version", 1),
    ("transaction.version", 2),
)
"""What Apache Kafka 4.3.1 finalizes in a new cluster; metadata.version is the first record of a log."""


class InitialController(NamedTuple):
    """A voter of a new quorum."""

    node_id: int
    host: str
    port: int
    directory_id: bytes


class FormatOptions(NamedTuple):
    """The options for empty directories.

    With `is_standalone` this node becomes the only voter, otherwise `controllers` become the voters; without both, voters are
    configured or found by bootstrap servers.
    """

    cluster_id: str | None = None
    """The id of a new cluster; None: random."""
    is_standalone: bool = False
    controllers: tuple[InitialController, ...] = ()
    has_no_initial_controllers: bool = False
    """The quorum starts on other nodes."""
    features: tuple[tuple[str, int], ...] = FINALIZED_FEATURES
    """The feature levels of a new cluster."""
    credentials: tuple[stored_records.UserScramCredentialRecord, ...] = ()
    """The SCRAM credentials of a new cluster."""
    kraft_version: int | None = None

    @property
    def names_voters(self) -> bool:
        """Whether an option determines the voters."""
        return self.is_standalone or self.has_no_initial_controllers or bool(self.controllers)


def format_directories(
    disk: Disk,
    directories: Sequence[str],
    node_id: int,
    options: FormatOptions,
    *,
    identity: NodeIdentity | None,
    metadata_directory: str | None = None,
    controller: ListenerAddress,
    random_bytes: Callable[[int], bytes],
    wall_ms: int,
    has_metadata_elsewhere: bool = False,
) -> NodeIdentity:
    """Format the directories that are not formatted yet.

    `identity` is the result of `read_node_identity`, `controller` the endpoint of this node's controller;
    `has_metadata_elsewhere`: whether other controllers have the metadata log, so that its directory may be new.

    Raises:
        UnusableDirectory: the metadata log would be in a new directory although an old one has it.
    """
    metadata = metadata_directory or directories[0]
    failed = {} if identity is None else identity.failed
    directories = [path for path in directories if path not in failed]
    if identity is not None and not has_metadata_elsewhere and read_meta_properties(disk, metadata) is None:
        raise UnusableDirectory(
            f"The metadata log would be in {metadata}, which is new, and {', '.join(identity.directory_ids)} is not: "
            "name the old one first, or as metadata.log.dir."
        )
    cluster = identity.cluster_id if identity is not None else options.cluster_id or uuid_text(new_uuid(random_bytes))
    ids: dict[str, bytes] = {}
    for path in dict.fromkeys((*directories, metadata)):
        found = read_meta_properties(disk, path)
        new_id = _new_directory_id(options, node_id, random_bytes, is_metadata=path == metadata)
        ids[path] = found.directory_id if found is not None and found.directory_id != ZERO_UUID else new_id
        meta = MetaProperties(cluster, node_id, ids[path])
        if found is None:
            voters = _initial_voters(options, meta, controller) if path == metadata else VoterSet()
            checkpoint = bootstrap_checkpoint(wall_ms, options.features, options.credentials)
            _format(disk, path, meta, voters, checkpoint, wall_ms)
        elif found.directory_id == ZERO_UUID:
            disk.replace_atomically(f"{path}/{META_PROPERTIES}", _meta_properties(meta, wall_ms))
    return NodeIdentity(cluster, node_id, {path: ids[path] for path in directories}, metadata, failed, ids[metadata])


def _new_directory_id(
    options: FormatOptions, node_id: int, random_bytes: Callable[[int], bytes], *, is_metadata: bool
) -> bytes:
    """A random id; that of the metadata directory is in the options if this node is an initial controller."""
    configured = (voter.directory_id for voter in options.controllers if is_metadata and voter.node_id == node_id)
    directory_id = next(configured, None)
    return new_uuid(random_bytes) if directory_id is None else directory_id


def _initial_voters(options: FormatOptions, meta: MetaProperties, controller: ListenerAddress) -> VoterSet:
    """The voters for the zero checkpoint of the metadata directory."""
    voters = list(options.controllers)
    if options.is_standalone:
        voters = [InitialController(meta.node_id, controller.host, controller.port, meta.directory_id)]
    return VoterSet(_voter(voter, controller.listener) for voter in voters)


def _format(
    disk: Disk,
    path: str,
    meta: MetaProperties,
    voters: VoterSet,
    checkpoint: bytes,
    wall_ms: int,
) -> None:
    disk.make_dirs(path)
    disk.replace_atomically(f"{path}/{BOOTSTRAP_CHECKPOINT}", checkpoint, is_private=True)
    if voters:
        metadata = f"{path}/{METADATA_DIRECTORY}"
        make_metadata_directory(disk, metadata)
        disk.replace_atomically(f"{metadata}/{ZERO_SNAPSHOT}", zero_checkpoint(to_record(voters), wall_ms))
        disk.sync_dir(path)
    disk.replace_atomically(f"{path}/{META_PROPERTIES}", _meta_properties(meta, wall_ms))


def make_metadata_directory(disk: Disk, path: str) -> None:
    """Creates the directory of the metadata log for its owner alone: the log has SCRAM keys and passwords of settings."""
    if not disk.is_dir(path):
        disk.make_dirs(path)
        disk.restrict(path)


def _voter(controller: InitialController, listener: str) -> Voter:
    key = ReplicaKey(controller.node_id, controller.directory_id)
    return Voter(key, (ListenerAddress(listener, controller.host, controller.port),), (0, WITH_DYNAMIC_VOTERS))


def _meta_properties(meta: MetaProperties, wall_ms: int) -> bytes:
    from datetime import UTC, datetime  # noqa: PLC0415  # only a formatting needs it

    date = datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    cluster = "".join(f"\\{character}" if character in "\\=:#!" else character for character in meta.cluster_id)
    return (
        f"#\n#{date}\nnode.id={meta.node_id}\ndirectory.id={uuid_text(meta.directory_id)}\n"
        f"version=1\ncluster.id={cluster}\n"
    ).encode()


def bootstrap_checkpoint(
    wall_ms: int,
    features: Sequence[tuple[str, int]] = FINALIZED_FEATURES,
    credentials: Sequence[stored_records.UserScramCredentialRecord] = (),
) -> bytes:
    """The content of bootstrap.checkpoint: the first records of a new cluster."""
    records: list[tuple[Message, int]] = [
        (stored_records.FeatureLevelRecord(name=name, feature_level=level), 0) for name, level in features
    ]
    records += [(credential, 0) for credential in credentials]
    return snapshot([], records, leader_epoch=0, timestamp_ms=wall_ms, last_contained_ms=0)


def zero_checkpoint(voters: stored_records.VotersRecord, wall_ms: int) -> bytes:
    """The content of the zero checkpoint: no data records, the voters."""
    return snapshot(voter_records(voters), [], leader_epoch=0, timestamp_ms=wall_ms, last_contained_ms=wall_ms)
