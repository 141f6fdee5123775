"""Records that are safe in an archive are deleted on the broker: only what an audit has verified.

FORMAT   _barnabas/audit.json: {when, archive, verified: [{topic, topic_id, partition, end}], reached: {partition: end}}
RULES    1. Nothing at or above the end that the last audit verified is deleted.
         2. Every file of the manifest must be there, of the length that it was written with; compacted ones are verified by
            the compaction (`compaction.py`, rule 2).
         3. A topic that was made again since is left alone.
         4. `reached` is the furthest end that any audit found a partition archived up to: an archive that ends earlier has lost
            rounds, though its manifest and its files fit each other.
NOT HERE Verifying (`audit.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from barnabas.pipeline.brokers import Brokers, Place, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_write import write_durably
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Manifest


@dataclass(frozen=True)
class Verified:
    """Up to where an audit found a partition and its archive the same."""

    topic: str
    topic_id: str
    partition: int
    end: int


def write_verified(folder: ArchiveFolder, when: str, verified: list[Verified], reached: dict[str, int]) -> None:
    """Keep what an audit has found."""
    found = {"verified": [asdict(one) for one in verified], "reached": reached}
    said = {"when": when, "archive": folder.identity().id, **found}
    try:
        write_durably(folder.audit_file, json.dumps(said, indent=1) + "\n")
    except OSError as failure:
        raise JobError(f"The finding cannot be written to {folder.audit_file}: {failure.strerror}.") from failure


def read_verified(folder: ArchiveFolder) -> list[Verified]:
    """What the last audit has found; nothing when there was none."""
    try:
        return [Verified(**one) for one in _read(folder).get("verified", [])]
    except (OSError, ValueError, TypeError, AttributeError) as failure:
        raise JobError(f"{folder.audit_file} is damaged: {failure}; remove it, and run an audit.") from failure


def read_reached(folder: ArchiveFolder) -> dict[str, int]:
    """How far audits found the archive (rule 4)."""
    try:
        return {str(place): int(end) for place, end in _read(folder).get("reached", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as failure:
        raise JobError(f"{folder.audit_file} is damaged: {failure}; remove it, and run an audit again.") from failure


def _read(folder: ArchiveFolder) -> dict[str, Any]:
    """What the last audit of this archive wrote down."""
    if not folder.audit_file.exists():
        return {}
    said: dict[str, Any] = json.loads(folder.audit_file.read_text())
    return said if said.get("archive") == folder.identity().id else {}


def trim(brokers: Brokers, folder: ArchiveFolder, manifest: Manifest, topics: dict[str, Topic]) -> dict[Place, int]:
    """Delete what is verified; up to where, by partition."""
    verified = {
        Place(one.topic, one.partition): one.end
        for one in read_verified(folder)
        if one.topic in topics and topics[one.topic].id == one.topic_id
    }
    if not verified:
        raise JobError(f"Nothing is trimmed: no audit has verified the archive {folder.path} yet.")
    for file in manifest.files.values():
        path = folder.path / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise JobError(f"Nothing is trimmed: {path} is not what it was when it was audited.")
    starts = brokers.starts(verified)
    before = {place: end for place, end in verified.items() if end > starts[place]}
    if before:
        brokers.delete_records(before)
    return before
