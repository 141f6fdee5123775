"""Whether the metadata log has lost what it held: a start would go on without the topics, and put their records away.

RULES    1. Only reads. An end that is not whole is what a crash leaves, and is cut; but it must not have been more:
         2. A log that was closed cleanly is whole. Where it is not, somebody has damaged it.
         3. A partition's directory is made when its topic is committed, and that is durable. So where the log ends early, and
            directories are there of topics that it neither has nor has removed, it once held more.
         4. It ends early where it is not whole, or in an epoch before the one that quorum-state promises.
NOT HERE What is read of the log (`metadata_replay.py`), cutting it (`metadata_log.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.formatting import METADATA_DIRECTORY, Identity
from replication.metadata_log.metadata_replay import Replayed
from replication.metadata_log.quorum_state_store import read_quorum_state
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.partition_directory import partition_of
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id
from storage.io.disk import Disk

_NAMED = 3


def refuse_a_loss(disk: Disk, identity: Identity, found: Replayed) -> None:
    """Refuse a metadata log that has lost what it held.

    Raises:
        UnreadableMetadata: it has, and a sentence says what to do.
    """
    log = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    marker = f"{identity.metadata_directory}/{CLEAN_SHUTDOWN}"
    left = found.left_over
    if left is not None and disk.exists(marker):
        raise UnreadableMetadata(
            f"{left.path} is damaged at position {left.position}, {left.length} bytes before its end, and was closed whole. "
            f"Restore {log} from a copy; or remove {marker} to have the log cut there."
        )
    state = read_quorum_state(disk, log)
    if left is None and (state is None or found.image.epoch >= state.epoch):
        return
    unknown = list(_unknown_partitions(disk, identity, found))
    if unknown:
        names = ", ".join(unknown[:_NAMED]) + (f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else "")
        raise UnreadableMetadata(
            f"The metadata log {log} has lost its end: it does not know the topics of {names}. "
            "Restore it from a copy; or move these directories away to go on without them."
        )


def _unknown_partitions(disk: Disk, identity: Identity, found: Replayed) -> Iterator[str]:
    topics = found.image.topics_by_id
    names = found.image.topics_by_name
    for directory in identity.directory_ids:
        for name in disk.listdir(directory):
            key = partition_of(name)
            if key is not None and name != METADATA_DIRECTORY:
                topic_id = _topic_id(disk, f"{directory}/{name}/{PARTITION_METADATA}")
                is_known = key[0] in names if topic_id is None else topic_id in topics or topic_id in found.removed
                if not is_known:
                    yield f"{directory}/{name}"


def _topic_id(disk: Disk, path: str) -> bytes | None:
    try:
        return read_topic_id(disk, path)
    except CorruptCheckpoint:
        return None
