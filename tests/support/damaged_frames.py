"""The partitions that may lose records because of damage to the files of a commit log.

RULES    1. A frame of which a byte is changed or missing may be lost, and with it what its partition has from there on in this
            file. Without a valid file header all frames are lost.
         2. A file without its queue file is scanned at a start. It may be lost from its first damaged frame on, or completely
            if a file before it is damaged: nothing proves that the rest was durable.
"""

from __future__ import annotations

from pathlib import Path

from storage.commitlog.commit_log import DIRECTORY
from storage.commitlog.frames import FILE_HEADER
from storage.inspection.commit_log_files import Frame, FrameScan, partitions_without_directory
from storage.io.disk import Disk


def partitions_at_risk(whole: Path, damaged: Path) -> set[tuple[str, int]]:
    """Topic and partition; `damaged` is a copy of `whole` with damage."""
    names = {
        (id_, number): (topic, number) for topic, number, id_, _ in partitions_without_directory(Disk(), str(whole))
    }
    found: set[tuple[str, int]] = set()
    is_before_damaged = False
    for path in sorted((whole / DIRECTORY).glob("*.clog")):
        now = _content(damaged / DIRECTORY / path.name)
        before = path.read_bytes()
        queue = path.with_suffix(".queue")
        is_scanned = not queue.exists() or _content(damaged / DIRECTORY / queue.name) != queue.read_bytes()
        is_lost = before[: FILE_HEADER.size] != now[: FILE_HEADER.size] or (is_before_damaged and is_scanned)
        scan = FrameScan(Disk().open(str(path), write=False), int(path.stem[:20]))
        for frame in scan:
            if not isinstance(frame, Frame):
                continue
            begin, end = scan.position(frame), frame.end - scan.start
            is_damaged = is_lost or before[begin:end] != now[begin:end]
            is_lost = is_lost or (is_damaged and is_scanned)
            is_before_damaged = is_before_damaged or is_damaged
            slot_id = scan.partitions.get(frame.slot)
            if is_damaged and slot_id is not None:
                found.add(names[slot_id.topic_id, slot_id.partition])
    return found


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
