"""What a recovery has changed, or would, in sentences: bytes cut, records lost, indexes built anew.

RULES    1. Only whole records count as lost: nobody knows what damaged bytes held.
NOT HERE The recovery (dry_run.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from broker.tools.dry_run import CORRUPT
from storage.inspection.batches import FoundBatch, walk
from storage.inspection.dry_run_disk import FileChange, RehearsalDisk
from storage.inspection.indexes import LOG
from storage.io.disk import Disk

_INDEXES = (".index", ".timeindex", ".txnindex")


def by_directory(disk: RehearsalDisk) -> dict[str, list[FileChange]]:
    """The changes of a rehearsal by the directory that the files lie in."""
    found: dict[str, list[FileChange]] = {}
    for change in disk.changes():
        found.setdefault(os.path.dirname(change.path), []).append(change)
    return found


def sentences(changes: Sequence[FileChange], end_offset: int | None) -> list[str]:
    """What these changes in a partition's directory come to; `end_offset` is where the log ends then."""
    disk = Disk()
    cut = lost = 0
    anew, aside, other = [], [], []
    gone = {os.path.splitext(path)[0] for path, _, after in changes if path.endswith(LOG) and after is None}
    for path, before, after in changes:
        name = os.path.basename(path)
        if name.endswith(CORRUPT):
            aside.append(name.removesuffix(CORRUPT))
        elif name.endswith(LOG) and before is not None:
            kept = min(after or 0, before)
            cut += before - kept
            lost += _records_behind(disk, path, kept)
        elif name.endswith(_INDEXES) and after is None:
            if os.path.splitext(path)[0] not in gone:
                other.append(f"deletes {name}")
        elif name.endswith(_INDEXES):
            anew.append(name)
    told = [f"sets {', '.join(aside)} aside"] if aside else []
    if cut:
        told.append(f"cuts {_bytes(cut)} behind offset {(end_offset or 0) - 1}: {_records(lost)}")
    if anew:
        told.append(f"builds {', '.join(anew)} anew")
    return told + other


def _records_behind(disk: Disk, path: str, position: int) -> int:
    lost = 0
    for found in walk(disk.open(path, write=False)):
        if isinstance(found, FoundBatch) and found.position >= position and found.is_valid:
            lost += found.header.record_count
    return lost


def _bytes(count: int) -> str:
    return f"{count:,} bytes" if count < 10_240 else f"{count // 1024:,} KiB"


def _records(count: int) -> str:
    return "no whole record is lost" if not count else f"{count:,} whole record{'s are' if count > 1 else ' is'} lost"
