"""Deletes records on the broker that an audit has verified in the archive.

FORMAT   _barnabas/audit.json: {when, archive, verified: [{topic, topic_id, partition, end}], reached: {partition: end}}
RULES    1. Only offsets below the end that the last audit verified are deleted.
         2. Each file of the manifest must exist with its original size. Compacted files are verified by the compaction
            (`compaction.py`, rule 2).
         3. A topic that was created again is not trimmed.
         4. `reached` is the largest end that any audit found for a partition. An archive with a smaller end has lost rounds,
            even if manifest and files agree.
NOT HERE Verifying (`audit.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.durable_files import from_fields, read_json, write_durably
from barnabas.pipeline.store.folder import ArchiveFolder
from barnabas.pipeline.store.manifest import Manifest


@dataclass(frozen=True)
class Verified:
    """The offset up to which an audit found partition and archive equal."""

    topic: str
    topic_id: str
    partition: int
    end: int


def write_verified(folder: ArchiveFolder, when: str, verified: list[Verified], reached: dict[str, int]) -> None:
    """Stores the result of an audit. Raises JobError if the disk refuses."""
    found = {"verified": [asdict(partition) for partition in verified], "reached": reached}
    document = {"when": when, "archive": folder.metadata().id, **found}
    try:
        write_durably(folder.audit_file, json.dumps(document, indent=1) + "\n")
    except OSError as failure:
        raise JobError(f"The result cannot be written to {folder.audit_file}: {failure.strerror}.") from failure


def read_verified(folder: ArchiveFolder) -> tuple[list[Verified], dict[str, int]]:
    """Returns what the last audit verified, and the largest ends that audits found (rule 4); empty without an audit.

    Raises JobError if the file is unreadable or damaged.
    """

    def parse(document: dict[str, Any]) -> tuple[list[Verified], dict[str, int]]:
        if document.get("archive") != folder.metadata().id:
            return [], {}
        reached = {str(tp): int(end) for tp, end in document.get("reached", {}).items()}
        return [from_fields(Verified, fields) for fields in document.get("verified", ())], reached

    try:
        return read_json(folder.audit_file, parse, advice="remove it, and run an audit again")
    except FileNotFoundError:
        return [], {}


def trim(
    brokers: Brokers, folder: ArchiveFolder, manifest: Manifest, topics: dict[str, Topic]
) -> dict[TopicPartition, int]:
    """Deletes the verified records; returns the new log start offsets. Raises JobError if files changed."""
    verified = {
        TopicPartition(partition.topic, partition.partition): partition.end
        for partition in read_verified(folder)[0]
        if partition.topic in topics and topics[partition.topic].id == partition.topic_id
    }
    if not verified:
        raise JobError(f"Nothing is trimmed: no audit has verified the archive {folder.path} yet.")
    for file in manifest.files.values():
        path = folder.path / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise JobError(f"Nothing is trimmed: {path} was deleted, or its size has changed, since it was written.")
    starts = brokers.beginning_offsets(verified)
    before = {tp: end for tp, end in verified.items() if end > starts[tp]}
    if before:
        brokers.delete_records(before)
    return before
