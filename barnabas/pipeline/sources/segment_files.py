"""Reads the other files of a log directory: indexes, producer snapshots, checkpoints.

FORMAT   all big-endian; a file name is the segment's base offset in 20 digits:
         `.index`      8 bytes: u32 last offset of a batch, relative to the base; u32 position of the batch
         `.timeindex` 12 bytes: i64 largest timestamp so far; u32 last offset of its batch, relative to the base
         `.txnindex`  34 bytes: i16 version 0; i64 producer id, first offset, last offset (the marker's), last stable offset
         `.snapshot`  i16 version 1, u32 CRC-32C of the rest, i32 entries of 46 bytes: i64 producer id, ..., at byte 38 i64
                      first offset of the open transaction or -1
         `*-offset-checkpoint`  text: 0, the number of entries, then topic, partition and offset in each line
RULES    1. An index is a hint. It may be incomplete, missing, or zero-filled at the end (the active segment's file is
            preallocated): it is read as far as it ascends.
         2. An invalid snapshot is ignored.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.damage import DamagedLog
from barnabas.pipeline.sources.decoding import Aborted
from barnabas.pipeline.spark.py_files import import_shipped

HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
DELETED = ".deleted"

_OFFSET_ENTRY = np.dtype([("offset", ">u4"), ("position", ">u4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">u4")])
_ABORTED_ENTRY = Struct(">hqqqq")
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = np.dtype([("producer_id", ">i8"), ("rest", "V30"), ("first_offset", ">i8")])
_CRC_END = 6
_TOPIC_ID = re.compile(r"^topic_id: (\S{22})$", re.MULTILINE)
_INDEX_READ = _OFFSET_ENTRY.itemsize * _TIME_ENTRY.itemsize * 1024

Offsets = dict[TopicPartition, int]


def path_of(directory: str, base: int, suffix: str) -> Path:
    """Returns the path of a segment's file."""
    return Path(directory, f"{base:020d}{suffix}")


def bases_of(directory: str) -> list[int]:
    """Returns the base offsets of a partition's segments."""
    names = [path.name for path in Path(directory).iterdir()]
    return sorted(int(name[:20]) for name in names if len(name) == 24 and name.endswith(".log") and name[:20].isdigit())


def topic_id_in(directory: str) -> str:
    """Returns the topic id in a partition's directory, in hexadecimal digits; empty if it has none."""
    try:
        found = _TOPIC_ID.search(Path(directory, PARTITION_METADATA).read_text())
    except FileNotFoundError:
        return ""
    return urlsafe_b64decode(found[1] + "==").hex() if found else ""


def position_before(directory: str, base: int, offset: int) -> int:
    """Returns a position at or before the batch of an offset, from the index."""
    entries = _ascending(path_of(directory, base, ".index"), _OFFSET_ENTRY, "position")
    index = int(np.searchsorted(entries["offset"].astype(np.int64), offset - base, side="right")) - 1
    return int(entries["position"][index]) if index >= 0 else 0


def last_position(directory: str, base: int) -> int:
    """Returns the last position in the index."""
    entries = _ascending(path_of(directory, base, ".index"), _OFFSET_ENTRY, "position")
    return int(entries["position"][-1]) if len(entries) else 0


def offset_before_time(directory: str, base: int, timestamp_ms: int) -> int:
    """Returns an offset below which no record is as late, from the time index."""
    entries = _ascending(path_of(directory, base, ".timeindex"), _TIME_ENTRY, "timestamp")
    index = int(np.searchsorted(entries["timestamp"].astype(np.int64), timestamp_ms)) - 1
    return base + int(entries["offset"][index]) if index >= 0 else base


def latest_time(directory: str, base: int) -> int | None:
    """Returns the largest timestamp of an inactive segment; None without an index."""
    entries = _ascending(path_of(directory, base, ".timeindex"), _TIME_ENTRY, "timestamp")
    return int(entries["timestamp"][-1]) if len(entries) else None


def aborted_in(directory: str, base: int) -> list[Aborted]:
    """Returns the aborted transactions of a segment's index. Raises DamagedLog."""
    path = path_of(directory, base, ".txnindex")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = len(data) - len(data) % _ABORTED_ENTRY.size
    found = []
    for version, producer_id, first, last, _ in _ABORTED_ENTRY.iter_unpack(data[:whole]):
        if version != 0 or not 0 <= first <= last:
            raise DamagedLog(f"{path} is not an index of aborted transactions: `barnabas doctor` checks the directory.")
        found.append(Aborted(producer_id, first, last))
    return found


def open_transactions(directory: str, base: int) -> dict[int, int] | None:
    """Returns the first offset of each producer's transaction that is open at the base offset; None without a snapshot."""
    try:
        data = path_of(directory, base, ".snapshot").read_bytes()
    except FileNotFoundError:
        return None
    return open_transactions_in(data)


def open_transactions_in(data: bytes) -> dict[int, int] | None:
    """Returns the first offset of each open transaction in a producer snapshot, by producer; None if it is invalid."""
    if len(data) < _SNAPSHOT_HEAD.size:
        return None
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    size = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.itemsize
    if version != 1 or count < 0 or size > len(data):
        return None
    if import_shipped("crc32c").crc32c(data[_CRC_END:]) != crc:
        return None
    entries = np.frombuffer(data[_SNAPSHOT_HEAD.size : size], _SNAPSHOT_ENTRY)
    is_open = entries["first_offset"] >= 0
    return dict(zip(entries["producer_id"][is_open].tolist(), entries["first_offset"][is_open].tolist(), strict=True))


def read_checkpoint(path: Path) -> Offsets | None:
    """Reads the offset of each partition; None if the file is missing or empty. Raises DamagedLog."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    try:
        entries = [line.split() for line in lines[2:] if line]
        found = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in entries}
        is_whole = lines[0] == "0" and len(entries) == int(lines[1])
    except (ValueError, IndexError):
        is_whole = False
    if not is_whole:
        raise DamagedLog(f"{path} is not an offset checkpoint: `barnabas doctor` checks the directory.")
    return found


def _ascending(path: Path, entry: Any, key: str) -> Any:
    """The valid entries of an index (rule 1)."""
    try:
        with path.open("rb") as file:
            data = b""
            while part := file.read(_INDEX_READ):
                data += part
                if not any(part[-entry.itemsize :]):
                    break
    except FileNotFoundError:
        data = b""
    entries = np.frombuffer(data[: len(data) - len(data) % entry.itemsize], entry)
    keys = entries[key].astype(np.int64)
    falls = np.flatnonzero(np.diff(keys, prepend=0) <= 0)
    return entries[: falls[0]] if len(falls) else entries
