"""Small text files, each replaced as a whole: offsets of all partitions of a directory, one partition's epochs and id.

FORMAT   offset and epoch checkpoints, Kafka's: a line `0` (the version), a line with the number of entries, then one
         entry a line, its fields parted by one space:
             recovery-point-offset-checkpoint, log-start-offset-checkpoint, replication-offset-checkpoint,
             cleaner-offset-checkpoint:
                                      topic partition offset     (in each log directory)
             leader-epoch-checkpoint: epoch start-offset         (in each partition's directory)
         `partition.metadata`: `version: 0`, newline, `topic_id: ` and the id in base64, no newline at the end.
         A file of no bytes is a checkpoint of no entries: Kafka makes such files before it has anything to say.
RULES    1. A reader, and a crash, find the old contents or the new ones.
         2. What cannot be understood is refused as a whole, with a sentence that names the file and the line; whoever
            reads it knows how to do without.
NOT HERE When to write one (log.py, log_manager.py); meta.properties (replication/metadata_log/formatting.py).
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
    """A checkpoint file does not hold what it should; to its log directory that is a failing disk."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__("understand the checkpoint", path, OSError(0, reason))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Offset per partition; empty when there is no such file."""
    offsets: dict[TopicPartition, int] = {}
    for number, (topic, partition, offset) in _numbered(disk, path, 3):
        offsets[topic, _integer(path, number, partition)] = _integer(path, number, offset)
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint, durably."""
    _write(disk, path, [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) in the file's order; empty when there is no such file."""
    return [
        (_integer(path, number, epoch), _integer(path, number, offset))
        for number, (epoch, offset) in _numbered(disk, path, 2)
    ]


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[int, int]], *, beside: str = TEMPORARY) -> None:
    """Replace a leader epoch checkpoint, durably."""
    disk.replace_atomically(path, epochs_text(epochs), beside=beside)


def epochs_text(epochs: Iterable[tuple[int, int]]) -> bytes:
    """What a leader epoch checkpoint holds."""
    return _text([f"{epoch} {offset}" for epoch, offset in epochs])


def read_topic_id(disk: Disk, path: str) -> bytes | None:
    """The topic's id in a partition's metadata file; None when there is no file, or one that power was lost over."""
    if not disk.exists(path):
        return None
    text = disk.read(path)
    if len(text) < len(partition_metadata(ZERO_UUID)):
        return None
    fields = dict(line.split(": ", 1) for line in text.decode("utf-8", "replace").splitlines() if ": " in line)
    if fields.get("version") != _VERSION:
        raise CorruptCheckpoint(path, f"its version is {fields.get('version')!r}, not 0")
    try:
        return uuid_from_text(fields["topic_id"])
    except (KeyError, ValueError):
        raise CorruptCheckpoint(path, f"{fields.get('topic_id')!r} is no topic id") from None


def partition_metadata(topic_id: bytes) -> bytes:
    """The contents of a partition's metadata file."""
    return f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode()


def write_topic_id(disk: Disk, path: str, topic_id: bytes, *, sync: bool = True) -> None:
    """Replace a partition's metadata file."""
    disk.replace_atomically(path, partition_metadata(topic_id), sync=sync)


def _write(disk: Disk, path: str, entries: list[str], *, sync: bool = True) -> None:
    disk.replace_atomically(path, _text(entries), sync=sync)


def _text(entries: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(entries)), *entries, ""]).encode()


def _numbered(disk: Disk, path: str, fields: int) -> list[tuple[int, list[str]]]:
    """Entries with the numbers of their lines, each split into so many fields."""
    lines = _lines(disk, path) if disk.exists(path) else []
    if not lines:
        return []
    if lines[0] != _VERSION:
        raise CorruptCheckpoint(path, f"its version is {lines[0]!r}, not 0")
    expected = _integer(path, 2, lines[1] if len(lines) > 1 else "")
    entries = [(number, line.split()) for number, line in enumerate(lines[2:], 3) if line]
    if len(entries) != expected:
        raise CorruptCheckpoint(path, f"it promises {expected} entries and holds {len(entries)}")
    for number, entry in entries:
        if len(entry) != fields:
            raise CorruptCheckpoint(path, f"line {number} has {len(entry)} fields, not {fields}")
    return entries


def _lines(disk: Disk, path: str) -> list[str]:
    try:
        return disk.read(path).decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "it is not text") from None


def _integer(path: str, number: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptCheckpoint(path, f"{text!r} in line {number} is no number") from None
