"""Disk space for a whole segment, set aside when its file is made (the setting `preallocate`).

RULES    1. The file's size does not change, so nobody reads what was not written, also after a crash. (Apache Kafka
            makes the file longer and has to find its end again.)
         2. What a finished segment did not need is given back.
NOT HERE When a segment begins and ends (segment_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from storage.io.disk import Disk


def set_aside(disk: Disk, path: str, size: int) -> Callable[[], None]:
    """What reserves space for a segment's file, to be made behind the file."""
    return partial(_set_aside, disk, path, size)


def give_back(disk: Disk, path: str, size: int) -> Callable[[], None]:
    """What frees the space behind a finished segment's bytes."""
    return partial(_give_back, disk, path, size)


def _set_aside(disk: Disk, path: str, size: int) -> None:
    if disk.exists(path):  # else it was deleted meanwhile
        disk.open(path, write=True).reserve(size)


def _give_back(disk: Disk, path: str, size: int) -> None:
    if disk.exists(path):
        disk.open(path, write=True).truncate(size)
