"""Opens the metadata log at startup: recovers it, and returns the state that the node starts with.

RULES    1. The log is truncated at the first incomplete batch (everything durable is complete). A log that ends before the
            newest snapshot has lost records; it restarts where the snapshot ends. So does one that ends in an earlier epoch: it
            is of another history, and the node was killed before it could truncate it.
         2. The only voter of a quorum knows that its whole log is committed. Other nodes know it only of the snapshot; the
            leader sends them the high watermark.
NOT HERE Reading the content (`metadata_replay.py`), writing it (`metadata_log.py`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, NamedTuple

from protocol.primitives import uuid_text
from replication.io_executor import IoExecutor
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import MAX_BATCH_BYTES, SnapshotName, UnreadableMetadata, Versioned
from replication.metadata.topic_names import METADATA_TOPIC
from replication.metadata_log.formatting import make_metadata_directory
from replication.metadata_log.metadata_log import MetadataLog, batches_between
from replication.metadata_log.metadata_replay import ReplayedMetadata, read_metadata
from replication.metadata_log.node_identity import NodeIdentity
from replication.metadata_log.quorum_state_store import read_quorum_state
from replication.metadata_log.raft_wire import METADATA_TOPIC_ID
from replication.raft.control_state_history import ControlStateHistory
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ReplicaKey, Voter, VoterSet
from storage.config.log_config import LogConfig
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.engine import EngineFactory
from storage.io.checkpoint_file import PARTITION_METADATA, write_topic_id
from storage.io.disk import Disk
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint

METADATA_LOG_CONFIG = LogConfig(
    max_message_bytes=MAX_BATCH_BYTES, retention_ms=-1, cleanup_policy=frozenset({"delete"})
)
_log = logging.getLogger("barnabas.metadata")


class OpenedMetadataLog(NamedTuple):
    """The opened log and the state that a node starts with."""

    log: MetadataLog
    state: ElectionState
    """The durable election state."""
    image: MetadataImage
    """What is known to be committed (rule 2)."""
    is_in_transaction: bool
    """Whether the image ends inside a transaction, which is void."""
    bootstrap: list[Versioned]
    """The first records of a new cluster; empty if it has records."""


def open_metadata_log(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: NodeIdentity,
    executor: IoExecutor,
    config: LogConfig = METADATA_LOG_CONFIG,
    found: ReplayedMetadata | None = None,
    static_voters: VoterSet | None = None,
    *,
    may_observe: bool = False,
) -> OpenedMetadataLog:
    """Recover the log; writes no record.

    `found`: the result of `read_metadata`, which is called for None; `static_voters`: the configured voters, if they are not
    stored in the log; `may_observe`: whether this node may be an observer of other voters, because it knows bootstrap servers.

    Raises:
        UnreadableMetadata: the log has unknown records, or this node has no place in the quorum.
        UnusableDirectory: quorum-state is malformed.
        StorageError: the disk failed.
    """
    found = found or read_metadata(disk, identity)
    voters = _voters(identity, found, static_voters, may_observe=may_observe)
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    make_metadata_directory(disk, path)
    if not disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(disk, f"{path}/{PARTITION_METADATA}", METADATA_TOPIC_ID, sync=False)
    is_new = not any(file.endswith(".log") for file in disk.listdir(path))
    log = _recover_log(disk, engine_factory, identity, config, found.start, is_new=is_new)
    if log.log_end_offset != found.end_offset:
        found = found.replay_again(batches_between(partial(_read, log), found.start.end_offset, log.log_end_offset))
    found.snapshots.clean_up()
    found.control.voters = voters
    opened = MetadataLog(log, executor, found.snapshots, found.control, max(found.image.epoch, 0))
    opened.snapshot_timestamp_ms = found.snapshot.last_contained_ms
    opened.bytes_since_snapshot, opened.committed_timestamp_ms = found.size, found.timestamp_ms
    is_only_voter = voters.latest.node_ids == [identity.node_id]
    return OpenedMetadataLog(
        opened,
        read_quorum_state(disk, path) or ElectionState(),
        found.image if is_only_voter else found.snapshot_image,
        is_only_voter and found.transactions.is_open,
        found.bootstrap,
    )


def _read(log: Log, offset: int, max_bytes: int) -> Any:
    return wait_for_disk(log.open().reader.read_records, offset, max_bytes)


def _voters(
    identity: NodeIdentity, found: ReplayedMetadata, static_voters: VoterSet | None, *, may_observe: bool
) -> ControlStateHistory[VoterSet]:
    """The voters as far as known; without configured voters, a static quorum is this node alone if it was so before."""
    voters, local_key = found.control.voters, ReplicaKey(identity.node_id, identity.metadata_directory_id)
    is_static = not found.control.kraft_version.latest
    if is_static and static_voters:
        voters = ControlStateHistory(static_voters)
    elif is_static and not may_observe:
        if len(found.last_voters) > 1:
            raise UnreadableMetadata(
                f"The metadata quorum has several voters ({', '.join(map(str, found.last_voters))}), which are a setting: "
                "name them and their addresses in controller.quorum.voters."
            )
        (only_voter,) = found.last_voters or [identity.node_id]
        voters = ControlStateHistory(VoterSet([Voter(ReplicaKey(only_voter))]))
    elif static_voters and not found.control.kraft_version.at(found.start.end_offset):
        # they apply again if the VotersRecords after the snapshot are truncated
        voters.reset_to(found.start.end_offset, static_voters)
    latest = voters.latest
    if len(latest) == 1 and local_key not in latest and not may_observe:
        _check_only_voter(next(iter(latest)).key, local_key, is_configured=bool(static_voters))
    return voters


def _check_only_voter(voter: ReplicaKey, local: ReplicaKey, *, is_configured: bool) -> None:
    """Check that a node that is not the only voter can reach it."""
    start = f"The metadata quorum is node {voter.node_id}, and this is node {local.node_id}"
    if voter.node_id == local.node_id:
        raise UnreadableMetadata(
            f"{start} with another directory: {uuid_text(local.directory_id)} is not {uuid_text(voter.directory_id)}. "
            "Restore the directory that it voted with."
        )
    if not is_configured:
        raise UnreadableMetadata(
            f"{start}: name it in controller.quorum.voters or controller.quorum.bootstrap.servers."
        )


def _recover_log(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: NodeIdentity,
    config: LogConfig,
    start: SnapshotName,
    *,
    is_new: bool,
) -> Log:
    """The log, truncated to complete batches, which ends at or behind the snapshot (rule 1)."""
    log = Log(
        disk,
        engine_factory,
        identity.metadata_directory,
        METADATA_TOPIC,
        0,
        config,
        checkpoint=Checkpoint(recovery_point=start.end_offset),
        topic_id=METADATA_TOPIC_ID,
        is_clean=False,
        is_new=is_new,
    )
    log.open()
    is_shorter = log.log_end_offset < start.end_offset
    is_empty = log.log_start_offset == log.log_end_offset
    if is_shorter or (not is_empty and log.open().epochs.latest < start.leader_epoch):
        what = f"has lost its records from {log.log_end_offset} on" if is_shorter else "is of another history"
        _log.warning("the metadata log %s; it restarts after the snapshot %s", what, start)
        log.open().truncate_fully(start.end_offset)
    return log
