"""What happens to a node's disk: it is full, fails, is slow, or what was not synced is lost with the power.

RULES    1. A disk that fails does so outside the node's own code: a library that is loaded before the C library answers an
            error, or waits (`failing_disk.c`); where there is no C compiler, disks do not fail.
         2. With the power goes what a log holds behind its recovery point, up to a random byte; the metadata log is synced
            by whoever votes with it, so nothing of it is lost.
"""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path

ORDERS = "orders"
_BALLAST = "ballast"
_CHECKPOINT = "recovery-point-offset-checkpoint"
_METADATA = "__cluster_metadata-0"


def fail(disk: Path, kinds: str, below: Path, error: int = errno.EIO, after_s: float = 0.0) -> None:
    """From now on: writes (w), syncs (s) and reads (r) of what lies below a path, as the node sees it.

    They fail with this error, after so long; with none (0) they are only late.
    """
    made = disk / "orders-being-made"
    made.write_text(f"{kinds} {error} {after_s * 1e6:.0f} {below}\n")
    made.rename(disk / ORDERS)


def fill(disk: Path) -> None:
    """Leave nothing, whoever else writes meanwhile."""
    with (disk / _BALLAST).open("wb", buffering=0) as file:
        for chunk in (bytes(1024 * 1024), bytes(4096)):
            with suppress(OSError):  # no space left
                while file.write(chunk) == len(chunk):
                    pass


def make_well(disk: Path) -> None:
    """Neither full nor failing nor slow."""
    for name in (ORDERS, _BALLAST):
        (disk / name).unlink(missing_ok=True)


def lose_power(directory: Path, dice: random.Random) -> int:
    """Cut the ends of logs that nobody has synced, in a log directory that nobody uses; how many lost something."""
    synced = _recovery_points(directory / _CHECKPOINT)
    lost = 0
    for partition in sorted(one for one in directory.glob("*-*") if one.is_dir() and one.name != _METADATA):
        segments = sorted(partition.glob("*.log"))
        if segments:
            size = segments[-1].stat().st_size
            firm = _position_of(segments[-1], synced.get(partition.name, 0))
            if firm < size:
                os.truncate(segments[-1], dice.randint(firm, size - 1))
                lost += 1
    return lost


def _recovery_points(checkpoint: Path) -> dict[str, int]:
    if not checkpoint.exists():
        return {}
    lines = checkpoint.read_text().split("\n")[2:]
    fields = [line.split() for line in lines if line]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in fields}


def _position_of(segment: Path, offset: int) -> int:
    """Where the first batch begins that does not lie wholly before an offset; where the batches end, if none does."""
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
