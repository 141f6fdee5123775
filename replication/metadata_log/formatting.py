"""The identity of log directories, and formatting empty ones exactly like `kafka-storage format`.

FORMAT   meta.properties       in every log directory; Java properties: version=1, cluster.id, node.id, directory.id
         bootstrap.checkpoint  in every log directory; a snapshot of the features and SCRAM credentials that the first
                               controller copies into the metadata log
         __cluster_metadata-0/00000000000000000000-0000000000.checkpoint
                               in the metadata directory; a snapshot without data records, with the control records
                               KRaftVersion 1 and Voters: this node alone, or the initial controllers. It does not exist
                               if the voters are configured or the node joins as an observer
RULES    1. meta.properties is written last: a directory that has it is formatted, and an interrupted formatting is
            repeated.
         2. A directory with data but without meta.properties is never formatted; the error names the file.
         3. All directories of a node have the same cluster id and node id, and different directory ids. A directory without an
            id, from before Kafka 3.7, gets one.
         4. A failed log directory is skipped, unless it holds the metadata log or no other directory has the node's identity.
NOT HERE The lock file (`storage/directories/log_manager.py`), the metadata log (`metadata_log.py`), elections
         (`quorum_state_store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from protocol.control_records import ControlType
from protocol.messages import stored_records
from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from protocol.schema import Message
from replication.metadata.feature_levels import METADATA_VERSION
from replication.metadata.metadata_records import ZERO_SNAPSHOT, snapshot
from replication.metadata_log.control_state import to_record
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from storage.io.disk import Disk, StorageError

META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
METADATA_DIRECTORY = "__cluster_metadata-0"

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
_KRAFT_LEVEL = 1

_FORMATTING_FILES = {BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, ".lock", "lost+found"}


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


def new_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """A random id like Kafka's: a UUID of version 4 (none of the 100 reserved ones) without a dash at the start of its text."""
    while True:
        drawn = bytearray(random_bytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        uuid = bytes(drawn)
        if not uuid_text(uuid).startswith("-"):
            return uuid


# ---- reading ---------------------------------------------------------------------------------------------


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
    properties: dict[str, MetaProperties] = {}
    failed: dict[str, StorageError] = {}
    for path in dict.fromkeys((*directories, metadata)):
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
    if not properties:
        for failure in failed.values():
            raise failure
        return None
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
    by_id: dict[bytes, str] = {}
    for path, found in properties.items():
        other = by_id.setdefault(found.directory_id, path)
        if other != path and found.directory_id != ZERO_UUID:
            raise UnusableDirectory(
                f"{other} and {path} have the same directory.id {uuid_text(found.directory_id)}: "
                "one is a copy of the other."
            )
    ids = {path: properties[path].directory_id for path in directories if path in properties}
    metadata_id = properties[metadata].directory_id if metadata in properties else ZERO_UUID
    return NodeIdentity(first.cluster_id, node_id, ids, metadata, failed, metadata_id)


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
    """Rule 2: an unformatted directory may contain only files of an interrupted formatting."""
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


# ---- formatting ------------------------------------------------------------------------------------------


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
) -> NodeIdentity:
    """Format the directories that are not formatted yet.

    `identity` is the result of `read_node_identity`, `controller` the endpoint of this node's controller.

    Raises:
        UnusableDirectory: the metadata log would be in a new directory although an old one has it.
    """
    metadata = metadata_directory or directories[0]
    failed = {} if identity is None else identity.failed
    directories = [path for path in directories if path not in failed]
    if identity is not None and read_meta_properties(disk, metadata) is None:
        raise UnusableDirectory(
            f"The metadata log would be in {metadata}, which is new, and {', '.join(identity.directory_ids)} is not: "
            "name the old one first, or as metadata.log.dir."
        )
    cluster = identity.cluster_id if identity is not None else options.cluster_id or uuid_text(new_uuid(random_bytes))
    ids: dict[str, bytes] = {}
    for path in dict.fromkeys((*directories, metadata)):
        found = read_meta_properties(disk, path)
        has_id = found is not None and found.directory_id != ZERO_UUID
        configured_id = next((one.directory_id for one in options.controllers if one.node_id == node_id), None)
        directory_id = configured_id if configured_id is not None and path == metadata else new_uuid(random_bytes)
        ids[path] = found.directory_id if found is not None and has_id else directory_id
        meta = MetaProperties(cluster, node_id, ids[path])
        if found is None:
            initial_voters = list(options.controllers)
            if options.is_standalone:
                initial_voters = [InitialController(node_id, controller.host, controller.port, directory_id)]
            voters = VoterSet(_voter(one, controller.listener) for one in initial_voters if path == metadata)
            _format(
                disk, path, meta, voters, bootstrap_checkpoint(wall_ms, options.features, options.credentials), wall_ms
            )
        elif not has_id:
            disk.replace_atomically(f"{path}/{META_PROPERTIES}", _meta_properties(meta, wall_ms))
    return NodeIdentity(cluster, node_id, {path: ids[path] for path in directories}, metadata, failed, ids[metadata])


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
    return Voter(key, (ListenerAddress(listener, controller.host, controller.port),), (0, _KRAFT_LEVEL))


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


def voter_records(
    voters: stored_records.VotersRecord, kraft_version: int | None = _KRAFT_LEVEL
) -> list[tuple[ControlType, Message]]:
    """The control records with the voters of a quorum, and with its kraft.version unless None."""
    records: list[tuple[ControlType, Message]] = [(ControlType.KRAFT_VOTERS, voters)]
    if kraft_version is not None:
        version = stored_records.KRaftVersionRecord(kraft_version=kraft_version)
        records.insert(0, (ControlType.KRAFT_VERSION, version))
    return records


def zero_checkpoint(voters: stored_records.VotersRecord, wall_ms: int) -> bytes:
    """The content of the zero checkpoint: no data records, the voters."""
    return snapshot(voter_records(voters), [], leader_epoch=0, timestamp_ms=wall_ms, last_contained_ms=wall_ms)
