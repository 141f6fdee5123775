"""Who a data directory belongs to, and making an empty one ours, exactly as `kafka-storage format` does.

FORMAT   meta.properties       in every log directory; Java properties: version=1, cluster.id, node.id, directory.id
         bootstrap.checkpoint  in every log directory; a snapshot of the features that the first controller copies
                               into the metadata log
         __cluster_metadata-0/00000000000000000000-0000000000.checkpoint
                               in the metadata directory; a snapshot without data, for its control records:
                               KRaftVersion 1 and Voters: this node alone, or those that the quorum begins with. Not there
                               where the voters are a setting, or others are asked for them
RULES    1. meta.properties is written last: a directory is formatted when it has one, so a formatting that was cut
            short is done again.
         2. What looks like data but has no meta.properties is never formatted; a sentence says so.
         3. All directories of a node agree on cluster and node; directory ids differ. One that has none yet, as
            before Kafka 3.7, is given one.
         4. A directory whose disk fails is done without, unless the metadata log lies there, or no other tells who we are.
NOT HERE The lock file (`storage/directories/log_manager.py`), the metadata log (`metadata_log.py`), elections (`quorum_state_store.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from protocol.messages import stored_records
from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from protocol.records import ControlType
from replication.metadata.feature_levels import METADATA_VERSION
from replication.metadata.metadata_records import ZERO_SNAPSHOT, Versioned, snapshot
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
"""What Apache Kafka 4.3.1 finalizes in a new cluster; metadata.version comes first in every log."""
_KRAFT_LEVEL = 1

_LEFT_BY_FORMATTING = {BOOTSTRAP_CHECKPOINT, METADATA_DIRECTORY, ".lock", "lost+found"}


class UnusableDirectory(Exception):
    """A data directory that this node must not touch; the message is a sentence."""


class MetaProperties(NamedTuple):
    """What a log directory says of itself."""

    cluster_id: str
    node_id: int
    directory_id: bytes
    """Zero where there is none yet."""


class Identity(NamedTuple):
    """Who this node is, as its log directories say."""

    cluster_id: str
    node_id: int
    directory_ids: dict[str, bytes]
    """Directory id by log directory."""
    metadata_directory: str
    """The directory that the metadata log is in: the first log directory, or one of its own."""
    failed: Mapping[str, StorageError] = {}  # nobody changes it
    """Log directories that could not be read, and why."""
    metadata_directory_id: bytes = ZERO_UUID
    """Of the directory that the metadata log is in."""


class ControllerEndpoint(NamedTuple):
    """Where other nodes would reach this node's controller."""

    listener: str
    host: str
    port: int


class InitialController(NamedTuple):
    """One of the voters that a quorum begins with."""

    node_id: int
    host: str
    port: int
    directory_id: bytes


def new_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """An id as Kafka makes them: a UUID of version 4 (so none of the reserved first hundred), no dash in front."""
    while True:
        drawn = bytearray(random_bytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        made = bytes(drawn)
        if not uuid_text(made).startswith("-"):
            return made


# ---- knowing directories ---------------------------------------------------------------------------------


def identify(
    disk: Disk, directories: Sequence[str], *, node_id: int, metadata_directory: str | None = None
) -> Identity | None:
    """Who the log directories belong to; None when none of them is formatted.

    Directories that are still empty may stand beside formatted ones: they are left out of `directory_ids`. The metadata
    log is in the first, unless it has a directory of its own.

    Raises:
        UnusableDirectory: they contradict each other or `node_id`, or hold what must not be touched.
        StorageError: what rule 4 cannot do without.
    """
    metadata = metadata_directory or directories[0]
    known: dict[str, MetaProperties] = {}
    failed: dict[str, StorageError] = {}
    for path in dict.fromkeys((*directories, metadata)):
        try:
            found = read_meta_properties(disk, path)
            if found is not None:
                known[path] = found
            else:
                _refuse_unknown_data(disk, path)
        except StorageError as error:
            if path == metadata:
                raise
            failed[path] = error
    if not known:
        for failure in failed.values():
            raise failure
        return None
    first_path, first = next(iter(known.items()))
    for path, found in known.items():
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
    for path, found in known.items():
        other = by_id.setdefault(found.directory_id, path)
        if other != path and found.directory_id != ZERO_UUID:
            raise UnusableDirectory(
                f"{other} and {path} have the same directory.id {uuid_text(found.directory_id)}: "
                "one is a copy of the other."
            )
    ids = {path: known[path].directory_id for path in directories if path in known}
    metadata_id = known[metadata].directory_id if metadata in known else ZERO_UUID
    return Identity(first.cluster_id, node_id, ids, metadata, failed, metadata_id)


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """What a log directory says of itself; None when it says nothing.

    Raises:
        UnusableDirectory: the file is not whole or not of this kind.
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
        raise UnusableDirectory(f"{path} is not whole: it lacks {', '.join(missing)}. Restore the file.")
    if version != "1":
        raise UnusableDirectory(f"{path} has version {version}; this broker knows version 1.")
    try:
        directory_id = uuid_from_text(values.get("directory.id") or uuid_text(ZERO_UUID))
        return MetaProperties(values["cluster.id"], int(values["node.id"]), directory_id)
    except ValueError:
        raise UnusableDirectory(
            f"{path} is not whole: its node.id or directory.id is none. Restore the file."
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


def _refuse_unknown_data(disk: Disk, directory: str) -> None:
    """Rule 2: only what an interrupted formatting leaves may be in a directory that is to be formatted."""
    if not disk.exists(directory):
        return
    if not disk.is_dir(directory):
        raise UnusableDirectory(f"{directory} is a file, not a directory.")
    found = sorted(name for name in disk.listdir(directory) if not name.endswith(".tmp"))
    strange = [name for name in found if name not in _LEFT_BY_FORMATTING]
    if METADATA_DIRECTORY in found:
        metadata = f"{directory}/{METADATA_DIRECTORY}"
        allowed = str(ZERO_SNAPSHOT)
        strange += [
            f"{METADATA_DIRECTORY}/{name}"
            for name in sorted(disk.listdir(metadata))
            if name != allowed and not name.endswith(".tmp")
        ]
    if strange:
        raise UnusableDirectory(
            f"{directory} holds {strange[0]} but no {META_PROPERTIES}, so it is not clear whose it is: "
            "restore that file, or choose an empty directory."
        )


# ---- formatting ------------------------------------------------------------------------------------------


def format_directories(
    disk: Disk,
    directories: Sequence[str],
    *,
    node_id: int,
    identity: Identity | None,
    metadata_directory: str | None = None,
    cluster_id: str | None,
    controller: ControllerEndpoint,
    is_standalone: bool = True,
    initial_controllers: Sequence[InitialController] = (),
    features: Sequence[tuple[str, int]] = FINALIZED_FEATURES,
    random_bytes: Callable[[int], bytes],
    wall_ms: int,
) -> Identity:
    """Format what is not formatted yet.

    `identity` is what `identify` found, `cluster_id` the id for a new cluster (None: a random one). `is_standalone`: this node
    becomes the quorum's only voter; with `initial_controllers` they are its voters; else the voters are a setting, or others
    are asked for them. `features` are those that a new cluster begins with.

    Raises:
        UnusableDirectory: the metadata log would lie in a new directory although an old one has it.
    """
    metadata = metadata_directory or directories[0]
    failed = {} if identity is None else identity.failed
    directories = [path for path in directories if path not in failed]
    if identity is not None and read_meta_properties(disk, metadata) is None:
        raise UnusableDirectory(
            f"The metadata log belongs into {metadata}, which is new, and {', '.join(identity.directory_ids)} is not: "
            "name the old one first, or as metadata.log.dir."
        )
    cluster = identity.cluster_id if identity is not None else cluster_id or uuid_text(new_uuid(random_bytes))
    ids: dict[str, bytes] = {}
    for path in dict.fromkeys((*directories, metadata)):
        found = read_meta_properties(disk, path)
        has_id = found is not None and found.directory_id != ZERO_UUID
        given = next((one.directory_id for one in initial_controllers if one.node_id == node_id), None)
        own_id = given if given is not None and path == metadata else new_uuid(random_bytes)
        ids[path] = found.directory_id if found is not None and has_id else own_id
        meta = MetaProperties(cluster, node_id, ids[path])
        if found is None:
            founders = list(initial_controllers)
            if is_standalone:
                founders = [InitialController(node_id, controller.host, controller.port, own_id)]
            voters = [_voter(one, controller.listener) for one in founders] if path == metadata else []
            _format(disk, path, meta, voters, features, wall_ms)
        elif not has_id:
            disk.replace_atomically(f"{path}/{META_PROPERTIES}", _meta_properties(meta, wall_ms))
    return Identity(cluster, node_id, {path: ids[path] for path in directories}, metadata, failed, ids[metadata])


def _format(
    disk: Disk,
    path: str,
    meta: MetaProperties,
    voters: list[stored_records.VotersVoter],
    features: Sequence[tuple[str, int]],
    wall_ms: int,
) -> None:
    disk.make_dirs(path)
    disk.replace_atomically(f"{path}/{BOOTSTRAP_CHECKPOINT}", bootstrap_checkpoint(wall_ms, features))
    if voters:
        metadata = f"{path}/{METADATA_DIRECTORY}"
        disk.make_dirs(metadata)
        disk.replace_atomically(
            f"{metadata}/{ZERO_SNAPSHOT}", zero_checkpoint(stored_records.VotersRecord(voters=voters), wall_ms)
        )
        disk.sync_dir(path)
    disk.replace_atomically(f"{path}/{META_PROPERTIES}", _meta_properties(meta, wall_ms))


def _voter(controller: InitialController, listener: str) -> stored_records.VotersVoter:
    return stored_records.VotersVoter(
        voter_id=controller.node_id,
        voter_directory_id=controller.directory_id,
        endpoints=[stored_records.Endpoint(name=listener, host=controller.host, port=controller.port)],
        kraft_version_feature=stored_records.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=_KRAFT_LEVEL
        ),
    )


def _meta_properties(meta: MetaProperties, wall_ms: int) -> bytes:
    from datetime import UTC, datetime  # noqa: PLC0415  # only a formatting needs it

    date = datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    cluster = "".join(f"\\{character}" if character in "\\=:#!" else character for character in meta.cluster_id)
    return (
        f"#\n#{date}\nnode.id={meta.node_id}\ndirectory.id={uuid_text(meta.directory_id)}\n"
        f"version=1\ncluster.id={cluster}\n"
    ).encode()


def bootstrap_records(features: Sequence[tuple[str, int]] = FINALIZED_FEATURES) -> list[Versioned]:
    """The records that a new cluster begins with."""
    return [(stored_records.FeatureLevelRecord(name=name, feature_level=level), 0) for name, level in features]


def bootstrap_checkpoint(wall_ms: int, features: Sequence[tuple[str, int]] = FINALIZED_FEATURES) -> bytes:
    """The bytes of bootstrap.checkpoint."""
    return snapshot([], bootstrap_records(features), leader_epoch=0, timestamp_ms=wall_ms, last_contained_ms=0)


def voter_records(
    voters: stored_records.VotersRecord,
) -> list[tuple[ControlType, stored_records.KRaftVersionRecord | stored_records.VotersRecord]]:
    """The control records that make these voters the quorum."""
    return [
        (ControlType.KRAFT_VERSION, stored_records.KRaftVersionRecord(kraft_version=_KRAFT_LEVEL)),
        (ControlType.KRAFT_VOTERS, voters),
    ]


def zero_checkpoint(voters: stored_records.VotersRecord, wall_ms: int) -> bytes:
    """The bytes of the zero checkpoint: no data, the voters."""
    return snapshot(voter_records(voters), [], leader_epoch=0, timestamp_ms=wall_ms, last_contained_ms=wall_ms)
