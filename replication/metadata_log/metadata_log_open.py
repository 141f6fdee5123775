"""Opening the metadata log: recovered to its end, with what this node knows of the cluster when it starts.

RULES    1. The log is cut at the first batch that is not whole (whatever was durable is whole). A log that ends before the
            newest snapshot, for it was lost, begins anew where the snapshot ends.
         2. Who is the only voter knows that all of its log is committed. Others know it of the snapshot alone: a leader will
            tell them the rest.
NOT HERE What stands in it (`metadata_replay.py`), writing it (`metadata_log.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from protocol.primitives import uuid_text
from replication.io_executor import Worker
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import (
    MAX_BATCH_BYTES,
    MetadataBatch,
    SnapshotName,
    UnreadableMetadata,
    Versioned,
    read_batches,
)
from replication.metadata_log.formatting import METADATA_DIRECTORY, Identity
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_replay import Replayed, read_metadata
from replication.metadata_log.quorum_state_store import read_quorum_state
from replication.raft.control_state_history import History
from replication.raft.raft_log import ElectionState
from replication.raft.rpc_messages import METADATA_TOPIC, METADATA_TOPIC_ID
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from storage.config.log_config import LogConfig
from storage.engine import EngineFactory
from storage.io.checkpoint_file import PARTITION_METADATA, write_topic_id
from storage.io.disk import Disk
from storage.log.log import Checkpoint, Log

METADATA_LOG_CONFIG = LogConfig(
    max_message_bytes=MAX_BATCH_BYTES, retention_ms=-1, cleanup_policy=frozenset({"delete"})
)
_READ_BYTES = 1024 * 1024
_log = logging.getLogger("barnabas.metadata")


class MetadataStart(NamedTuple):
    """What a node starts with."""

    log: MetadataLog
    state: ElectionState
    """What it must not forget of elections."""
    image: MetadataImage
    """What it knows to be committed (rule 2)."""
    is_in_transaction: bool
    """Whether the image ends inside a transaction, which is void."""
    bootstrap: list[Versioned]
    """What a new cluster begins with; empty when it has begun."""


def open_metadata_log(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: Identity,
    worker: Worker,
    config: LogConfig = METADATA_LOG_CONFIG,
    found: Replayed | None = None,
    static_voters: VoterSet | None = None,
    *,
    may_observe: bool = False,
) -> MetadataStart:
    """Recover the log; writes no record.

    Args:
        disk: the file system.
        engine_factory: for the log.
        identity: of the node.
        worker: for writing.
        config: how large and how old segments get.
        found: what `read_metadata` found; None: it is read now.
        static_voters: those of the settings, for a quorum whose voters do not stand in the log.
        may_observe: whether this node need not be a voter: it knows whom to ask.

    Raises:
        UnreadableMetadata: somebody wrote what this node does not understand, or it has no place in the quorum.
        UnusableDirectory: quorum-state is broken.
        StorageError: the disk failed.
    """
    found = found or read_metadata(disk, identity)
    voters = _voters(identity, found, static_voters, may_observe=may_observe)
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    disk.make_dirs(path)
    if not disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(disk, f"{path}/{PARTITION_METADATA}", METADATA_TOPIC_ID, sync=False)
    is_new = not any(file.endswith(".log") for file in disk.listdir(path))
    log = _recovered(disk, engine_factory, identity, config, found.start, is_new=is_new)
    if log.log_end_offset != found.end_offset:
        found = found.again(_batches(log, found.start.end_offset))
    found.snapshots.tidy()
    opened = MetadataLog(log, worker, found.snapshots, voters, found.kraft_version, epoch=max(found.image.epoch, 0))
    opened.snapshot_ms = found.snapshot.last_contained_ms
    opened.bytes_behind, opened.committed_ms = found.size, found.timestamp_ms
    is_alone = voters.latest.node_ids == [identity.node_id]
    return MetadataStart(
        opened,
        read_quorum_state(disk, path) or ElectionState(),
        found.image if is_alone else found.begins_as,
        is_alone and found.is_in_transaction,
        found.bootstrap,
    )


def _voters(
    identity: Identity, found: Replayed, static_voters: VoterSet | None, *, may_observe: bool
) -> History[VoterSet]:
    """Who votes, as far as is known; in a static quorum without settings this node alone, if it was so before."""
    voters, own = found.voters, ReplicaKey(identity.node_id, identity.metadata_directory_id)
    is_static = not found.kraft_version.latest
    if is_static and static_voters:
        voters = History(static_voters)
    elif is_static and not may_observe:
        if len(found.last_voters) > 1:
            raise UnreadableMetadata(
                f"The metadata quorum has several voters ({', '.join(map(str, found.last_voters))}), which are a setting: "
                "name them and their addresses in controller.quorum.voters."
            )
        alone = found.last_voters or [identity.node_id]
        voters = History(VoterSet([Voter(ReplicaKey(alone[0]))]))
    elif static_voters and not found.kraft_version.at(found.start.end_offset):
        # theirs again, if the records that name others are cut off
        voters.begins_with(found.start.end_offset, static_voters)
    latest = voters.latest
    if len(latest) == 1 and own not in latest and not may_observe:
        (voter,) = latest
        raise UnreadableMetadata(
            f"The metadata quorum is node {voter.key.node_id}, and this is node {own.node_id}"
            + (
                ": name it in controller.quorum.bootstrap.servers."
                if voter.key.node_id != own.node_id
                else f" with another directory: {uuid_text(own.directory_id)} is not {uuid_text(voter.key.directory_id)}. "
                "Restore the directory that it voted with."
            )
        )
    return voters


def _recovered(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: Identity,
    config: LogConfig,
    start: SnapshotName,
    *,
    is_new: bool,
) -> Log:
    """The log, whole to its end, which is not before the snapshot's (rule 1)."""
    log = Log(
        disk,
        engine_factory,
        identity.metadata_directory,
        METADATA_TOPIC,
        0,
        config,
        known=Checkpoint(recovery_point=start.end_offset),
        topic_id=METADATA_TOPIC_ID,
        is_clean=False,
        is_new=is_new,
    )
    log.open()
    if log.log_end_offset < start.end_offset:
        _log.warning("the metadata log is lost from %d on; going on behind %s", log.log_end_offset, start)
        log.truncate_fully(start.end_offset)
    return log


def _batches(log: Log, offset: int) -> Iterable[MetadataBatch]:
    while offset < log.log_end_offset:
        for batch in read_batches(log.read_records(offset, _READ_BYTES)):
            offset = batch.last_offset + 1
            yield batch
