"""Detects a metadata log that has lost records: a node with it would start without its topics, and rename their logs as strays.

RULES    1. Reads only. After a crash an incomplete batch at the end is normal: the start truncates it.
         2. After a clean shutdown an incomplete batch is damage. Only log directories have a marker of it.
         3. A log ends early if its last batch is incomplete, or in an epoch below the one in quorum-state; or if it is empty,
            and no other controller has its records.
         4. A partition's directory is created after its topic is committed and durable. So a log that ends early has lost
            records if there are directories of topics that it neither contains nor has removed.
         5. A snapshot replaces the records before it, so it has removed a topic without a trace if it does not contain the
            topic, and the partition's directory, or the first file of a commit log with its frames, is older than the last
            record that it covers. The node was killed, or lost power, before it deleted the partition durably.
NOT HERE Reading the log (`metadata_replay.py`), truncating it (`metadata_log_open.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.metadata_replay import ReplayedMetadata
from replication.metadata_log.node_identity import NodeIdentity
from replication.metadata_log.quorum_state_store import read_quorum_state
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import METADATA_DIRECTORY, parse_partition_dir_name
from storage.inspection.commit_log_files import DIRECTORY as COMMIT_LOG_DIRECTORY
from storage.inspection.commit_log_files import partitions_without_directory
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id
from storage.io.disk import Disk

_MAX_LISTED = 3


def check_for_loss(
    disk: Disk, identity: NodeIdentity, found: ReplayedMetadata, *, is_only_controller: bool = False
) -> None:
    """Refuse a metadata log that has lost records; `is_only_controller`: whether the settings name no other controller.

    Raises:
        UnreadableMetadata: it has; the message says what to do.
    """
    log = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    marker = f"{identity.metadata_directory}/{CLEAN_SHUTDOWN}"
    tail = found.invalid_tail
    is_in_log_directory = identity.metadata_directory in identity.directory_ids
    if tail is not None and is_in_log_directory and disk.exists(marker):
        raise UnreadableMetadata(
            f"{tail.path} is damaged at position {tail.position}, {tail.length} bytes before its end, after a clean shutdown. "
            f"Restore {log} from a copy; or remove {marker} to truncate the log there."
        )
    state = read_quorum_state(disk, log)
    is_empty = state is None and is_only_controller and not found.image.features
    if tail is None and not is_empty and (state is None or found.image.epoch >= state.epoch):
        return
    lost_partitions = list(_partitions_of_unknown_topics(disk, identity, found))
    if lost_partitions:
        names = ", ".join(lost_partitions[:_MAX_LISTED]) + (
            f" and {len(lost_partitions) - _MAX_LISTED} more" if len(lost_partitions) > _MAX_LISTED else ""
        )
        problem = "is empty" if is_empty else "has lost its end"
        raise UnreadableMetadata(
            f"The metadata log {log} {problem}: it does not know the topics of {names}. "
            "Restore it from a copy; or move these directories away to start without them."
        )


def _partitions_of_unknown_topics(disk: Disk, identity: NodeIdentity, found: ReplayedMetadata) -> Iterator[str]:
    topics = found.image.topics_by_id
    names = found.image.topics_by_name.keys() | found.removed_names
    for directory in identity.directory_ids:
        for name in disk.listdir(directory):
            key = parse_partition_dir_name(name)
            if key is not None and name != METADATA_DIRECTORY:
                path = f"{directory}/{name}/{PARTITION_METADATA}"
                topic_id = _topic_id(disk, path)
                topic, _ = key
                is_known = topic in names if topic_id is None else topic_id in topics or topic_id in found.removed
                if not is_known and (topic_id is None or not _is_removed_by_snapshot(disk.modified_ms(path), found)):
                    yield f"{directory}/{name}"
        for topic, partition, topic_id, created_before_ms in partitions_without_directory(disk, directory):
            is_known = topic_id in topics or topic_id in found.removed
            if not is_known and not _is_removed_by_snapshot(created_before_ms, found):
                yield f"{directory}/{COMMIT_LOG_DIRECTORY} ({topic}-{partition})"


def _is_removed_by_snapshot(created_before_ms: int, found: ReplayedMetadata) -> bool:
    """Whether a partition of an unknown topic was created before the snapshot ends (rule 5)."""
    return created_before_ms < found.snapshot.last_contained_ms


def _topic_id(disk: Disk, path: str) -> bytes | None:
    try:
        return read_topic_id(disk, path)
    except CorruptCheckpoint:
        return None
