"""Small text files, replaced as a whole: offset checkpoints, leader epochs, partition metadata.

FORMAT   offset and epoch checkpoints, as in Kafka: a line `0` (the version), a line with the number of entries, then one
         entry per line, fields separated by one space:
             recovery-point-offset-checkpoint, log-start-offset-checkpoint, replication-offset-checkpoint,
             cleaner-offset-checkpoint:
                                      topic partition offset     (in each log directory)
             leader-epoch-checkpoint: epoch start-offset         (in each partition's directory)
         `partition.metadata`: `version: 0`, newline, `topic_id: ` and the id in base64, no newline at the end.
         An empty file is a checkpoint without entries: Kafka creates such files.
RULES    1. A reader, also after a crash, finds the old contents or the new ones.
         2. An invalid file raises CorruptCheckpoint with path and line; the caller knows how to continue without it.
NOT HERE When to write one (checkpoint_writer.py); meta.properties (replication/metadata_log/node_identity.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from protocol.primitives import ZERO_UUID, uuid_from_text, uuid_text
from storage.io.disk import TEMPORARY, Disk, StorageError

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
FIRST_DIRTY: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

_VERSION = "0"

TopicPartition = tuple[str, int]


class CorruptCheckpoint(StorageError):
    """A checkpoint file is invalid; a start goes on without it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("parse the checkpoint", path, OSError(0, reason))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Offset by partition; empty if the file does not exist."""
    offsets: dict[TopicPartition, int] = {}
    for number, (topic, partition, offset) in _read_entries(disk, path, 3):
        offsets[topic, _integer(path, number, partition)] = _integer(path, number, offset)
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint durably."""
    entries = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    disk.replace_atomically(path, _text(entries))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) in file order; empty if the file does not exist."""
    return [
        (_integer(path, number, epoch), _integer(path, number, offset))
        for number, (epoch, offset) in _read_entries(disk, path, 2)
    ]


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]], *, suffix: str = TEMPORARY) -> None:
    """Replace a leader epoch checkpoint durably; `suffix` names the temporary file."""
    disk.replace_atomically(path, epochs_text(epochs), suffix=suffix)


def epochs_text(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The contents of a leader epoch checkpoint."""
    return _text([f"{epoch} {offset}" for epoch, offset in epochs])


def read_topic_id(disk: Disk, path: str) -> bytes | None:
    """The topic id in a partition's metadata file; None if the file is missing, or truncated by a loss of power."""
    if not disk.exists(path):
        return None
    text = disk.read(path)
    if len(text) < len(partition_metadata(ZERO_UUID)):
        return None
    fields = dict(line.split(": ", 1) for line in text.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version") != _VERSION:
        raise CorruptCheckpoint(path, f"its version is {fields.get('version')!r}, not 0")
    id_text = fields.get("topic_id", "")
    try:
        topic_id = uuid_from_text(id_text)
    except ValueError:
        topic_id = None
    # Base64 text has unused bits. If they are set, a loss of power has replaced the end of the file.
    if topic_id is None or uuid_text(topic_id) != id_text:
        raise CorruptCheckpoint(path, f"{id_text!r} is not a topic id")
    return topic_id


def partition_metadata(topic_id: bytes) -> bytes:
    """The contents of a partition's metadata file."""
    return f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode()


def write_topic_id(disk: Disk, path: str, topic_id: bytes, *, sync: bool = True) -> None:
    """Replace a partition's metadata file."""
    disk.replace_atomically(path, partition_metadata(topic_id), sync=sync)


def _text(entries: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(entries)), *entries, ""]).encode()


def _read_entries(disk: Disk, path: str, fields: int) -> list[tuple[int, list[str]]]:
    """The entries as (line number, fields)."""
    try:
        lines = disk.read(path).decode().splitlines() if disk.exists(path) else []
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "it is not UTF-8 text") from None
    if not lines:
        return []
    if lines[0] != _VERSION:
        raise CorruptCheckpoint(path, f"its version is {lines[0]!r}, not 0")
    expected = _integer(path, 2, lines[1] if len(lines) > 1 else "")
    entries = [(number, line.split()) for number, line in enumerate(lines[2:], 3) if line]
    if len(entries) != expected:
        raise CorruptCheckpoint(path, f"it declares {expected} entries and contains {len(entries)}")
    for number, entry in entries:
        if len(entry) != fields:
            raise CorruptCheckpoint(path, f"line {number} has {len(entry)} fields, not {fields}")
    return entries


def _integer(path: str, number: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptCheckpoint(path, f"{text!r} in line {number} is not a number") from None
