"""Describes the changes of a recovery: truncated bytes, lost records, rebuilt indexes.

RULES    1. Only complete records count as lost; the contents of damaged bytes are unknown.
NOT HERE The recovery (dry_run.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from broker.tools.dry_run import CORRUPT
from storage.inspection.batches import StoredBatch, read_stored_batches
from storage.inspection.dry_run_disk import FileChange
from storage.inspection.indexes import LOG
from storage.io.disk import Disk

_INDEXES = (".index", ".timeindex", ".txnindex")


def describe_changes(changes: Sequence[FileChange], end_offset: int | None) -> list[str]:
    """The changes in a partition's directory as sentences; `end_offset` is the log end offset after them."""
    disk = Disk()
    cut_bytes = lost_records = 0
    rebuilt, renamed, others = [], [], []
    deleted = {os.path.splitext(path)[0] for path, _, after in changes if path.endswith(LOG) and after is None}
    for path, before, after in changes:
        name = os.path.basename(path)
        if name.endswith(CORRUPT):
            renamed.append(name.removesuffix(CORRUPT))
        elif name.endswith(LOG) and before is not None:
            kept = min(after or 0, before)
            cut_bytes += before - kept
            lost_records += _records_after(disk, path, kept)
        elif name.endswith(_INDEXES) and after is None:
            if os.path.splitext(path)[0] not in deleted:
                others.append(f"deletes {name}")
        elif name.endswith(_INDEXES):
            rebuilt.append(name)
    texts = [f"renames {', '.join(renamed)} to {CORRUPT}"] if renamed else []
    if cut_bytes:
        texts.append(f"truncates {_bytes(cut_bytes)} after offset {(end_offset or 0) - 1}: {_records(lost_records)}")
    if rebuilt:
        texts.append(f"rebuilds {', '.join(rebuilt)}")
    return texts + others


def _records_after(disk: Disk, path: str, position: int) -> int:
    lost_records = 0
    for found in read_stored_batches(disk.open(path, write=False)):
        if isinstance(found, StoredBatch) and found.position >= position and found.is_valid:
            lost_records += found.header.record_count
    return lost_records


def _bytes(count: int) -> str:
    return f"{count:,} bytes" if count < 10_240 else f"{count // 1024:,} KiB"


def _records(count: int) -> str:
    return "no whole record is lost" if not count else f"{count:,} whole record{'s are' if count > 1 else ' is'} lost"
