"""Disk faults of a node: full, failing or slow disks, and the loss of unflushed data.

RULES    1. A preloaded library returns errors or delays calls (`failing_disk.c`); without a C compiler disks do not fail.
         2. A power loss truncates each log at a random byte above its recovery point. The metadata log is flushed before its
            votes and acknowledgements, so it stays complete.
         3. A commit log is truncated above what was synced by its own frames, by its sealed files, or by the recovery points
            of its partitions.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage.commitlog.commit_log import DIRECTORY as COMMIT_LOG
from storage.commitlog.frames import FILE_HEADER, LONG, Frame, FrameKind, parse_bind, parse_file_header, scan
from storage.commitlog.log_file import LOG_SUFFIX, name_at
from storage.commitlog.sealing import queue_path
from storage.io.disk import Disk

FAULT_FILE = "orders"
_BALLAST = "ballast"
_CHECKPOINT = "recovery-point-offset-checkpoint"
_METADATA = "__cluster_metadata-0"


def fail(disk: Path, kinds: str, below: Path, error: int = errno.EIO, after_s: float = 0.0) -> None:
    """From now on writes (w), flushes (s) and reads (r) below a path, as the node sees it, fail with an errno after a delay.

    With errno 0 they are only delayed.
    """
    made = disk / "orders-being-made"
    made.write_text(f"{kinds} {error} {after_s * 1e6:.0f} {below}\n")
    made.rename(disk / FAULT_FILE)


def fill(disk: Path) -> None:
    """Uses all free space, despite concurrent writers."""
    with (disk / _BALLAST).open("wb", buffering=0) as file:
        for chunk in (bytes(1024 * 1024), bytes(4096)):
            with suppress(OSError):  # no space left
                while file.write(chunk) == len(chunk):
                    pass


def clear_faults(disk: Path) -> None:
    for name in (FAULT_FILE, _BALLAST):
        (disk / name).unlink(missing_ok=True)


def lose_power(directory: Path, rng: random.Random) -> int:
    """Truncates the unflushed ends of the logs in an unused log directory; the number of logs that lost data."""
    synced = _recovery_points(directory / _CHECKPOINT)
    lost = 0
    for partition in sorted(one for one in directory.glob("*-*") if one.is_dir() and one.name != _METADATA):
        segments = sorted(partition.glob("*.log"))
        if segments:
            size = segments[-1].stat().st_size
            firm = _position_of(segments[-1], synced.get(partition.name, 0))
            if firm < size:
                os.truncate(segments[-1], rng.randint(firm, size - 1))
                lost += 1
    return lost + _lose_frames(directory / COMMIT_LOG, synced, rng)


def _lose_frames(commit_log: Path, synced: dict[str, int], rng: random.Random) -> bool:
    """Truncates the unflushed end of a commit log; whether it lost frames."""
    files = {
        path: name_at(str(path)).start
        for path in sorted(commit_log.glob(f"*{LOG_SUFFIX}"))
        if not Path(queue_path(str(path))).exists()
    }
    firm = end = 0
    for path, start in files.items():
        bound: dict[int, str] = {}
        for frame in _frames(path, start):
            end = frame.end
            if frame.kind == FrameKind.BIND:
                _, partition, _, _, topic = parse_bind(frame.payload)
                bound[frame.slot] = f"{topic}-{partition}"
            elif frame.kind == FrameKind.DURABLE:
                firm = max(firm, LONG.unpack(frame.payload)[0])
            elif frame.batches and frame.batches[-1].last_offset < synced.get(bound.get(frame.slot, ""), 0):
                firm = max(firm, frame.end)
    if firm >= end:
        return False
    kept = rng.randint(firm, end - 1)
    for path, start in files.items():
        os.truncate(path, max(FILE_HEADER.size, min(path.stat().st_size, kept - start)))
    return True


def _frames(path: Path, start: int) -> Iterator[Frame]:
    file = Disk().open(str(path), write=False)
    file_id = parse_file_header(file.pread(FILE_HEADER.size, 0), start)
    if file_id is not None:
        yield from (frame for frame in scan(file, file_id, start, file.size()) if isinstance(frame, Frame))


def _recovery_points(checkpoint: Path) -> dict[str, int]:
    if not checkpoint.exists():
        return {}
    lines = checkpoint.read_text().split("\n")[2:]
    fields = [line.split() for line in lines if line]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in fields}


def _position_of(segment: Path, offset: int) -> int:
    """The byte position of the first batch that ends at or above an offset, or the end of the valid batches."""
    data = segment.read_bytes()
    at = 0
    while at + 27 <= len(data):
        base = int.from_bytes(data[at : at + 8], "big")
        length = int.from_bytes(data[at + 8 : at + 12], "big")
        last = base + int.from_bytes(data[at + 23 : at + 27], "big")
        if length == 0 or last >= offset or at + 12 + length > len(data):
            break
        at += 12 + length
    return at
