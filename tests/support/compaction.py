"""Compacted logs for tests: keyed batches, a compaction in the caller's thread, committed records.

NOT HERE The broker's compactor (tests/unit/replication/partition/test_compactor.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from protocol.compression import Compression
from protocol.control_records import ControlType, control_type
from protocol.errors import KafkaError
from protocol.records import BatchHeader, Record, headers, records
from replication.completion import Completion, completed
from replication.partition.compactor import Outcome, Replace
from storage.compaction.cleanable import bounds_of, last_records, make_job, measure
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import (
    CleanerJob,
    CleanerResources,
    CleaningResult,
    Replacement,
    failure_of,
)
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from tests.support.logs import EVERYTHING, NOW_MS, SMALL, ProducerInfo, append_records, builder_of, bytes_of, flush

COMPACTED = replace(SMALL, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)

Pair = tuple[bytes | str, bytes | str | None]


def keyed(
    *pairs: Pair,
    timestamp_ms: int = NOW_MS,
    compression: Compression = Compression.NONE,
    producer: ProducerInfo | None = None,
) -> bytearray:
    """A batch of records with keys; a value of None is a tombstone."""
    builder = builder_of(producer, compression)
    for key, value in pairs:
        text = value.encode() if isinstance(value, str) else value
        builder.append(timestamp_ms, key.encode() if isinstance(key, str) else key, text)
    return builder.build()


def put(log: Log, *pairs: Pair, **options: object) -> int:
    """Append a keyed batch and raise the high watermark; returns its base offset."""
    data = keyed(*pairs, **options)  # type: ignore[arg-type]
    offset = append_records(log, data).base_offset
    log.high_watermark = log.log_end_offset
    return offset


def closed(log: Log) -> None:
    """Start a new segment after a flush, so that all before it can be compacted."""
    log.open().roll(NOW_MS)
    flush(log)


def compact(
    log: Log,
    wall_ms: int = NOW_MS,
    *,
    disk: Disk | None = None,
    resources: CleanerResources = CleanerResources(),  # noqa: B008
) -> CleaningResult | None:
    """Compact a log as far as possible, whatever the dirty ratio; None if nothing is cleanable."""
    job = job_for(log, wall_ms, resources)
    if job.first_dirty_offset >= job.end_offset:
        return None
    for step in clean(disk or Disk(), job):
        if isinstance(step, Replacement):
            assert log.open().replace(step.replaced, step.size, wall_ms, has_aborted=step.has_aborted)
        elif isinstance(step, CleaningResult):
            log.offsets.first_dirty_offset = step.next_dirty_offset
            return step
    raise AssertionError("a cleaning ends with Cleaned")


def cleaned(log: Log, *batches: Sequence[Pair], wall_ms: int = NOW_MS) -> CleaningResult | None:
    """Append keyed batches, close their segment and compact the log."""
    for pairs in batches:
        put(log, *pairs)
    closed(log)
    return compact(log, wall_ms)


def job_for(
    log: Log,
    wall_ms: int = NOW_MS,
    resources: CleanerResources = CleanerResources(),  # noqa: B008
    *,
    written_recovery_point: int | None = None,
) -> CleanerJob:
    """The job that cleans a log as far as possible; its recovery point counts as written unless another is given."""
    recovery_point = log.recovery_point if written_recovery_point is None else written_recovery_point
    view = log.open().engine.view()
    dirt = measure(view, bounds_of(log, wall_ms))
    return make_job(view, log, dirt, last_records(log.open().producers), recovery_point, wall_ms, resources)


def batches_of(log: Log) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Every batch with its buffer."""
    data = bytes_of(log)
    for position, header in headers(data):
        yield data, position, header


def committed_records(log: Log) -> list[Record]:
    """The records that a read_committed consumer returns."""
    aborted = sorted(
        wait_for_disk(log.open().engine.aborted, log.log_start_offset, log.log_end_offset),
        key=lambda found: found.first_offset,
    )
    stable = log.open().reader.last_stable_offset
    ignored: set[int] = set()
    seen: list[Record] = []
    for data, position, header in batches_of(log):
        if header.base_offset >= stable:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            ignored.add(aborted.pop(0).producer_id)
        found = records(data, position, header, max_bytes=EVERYTHING)
        if header.is_control:
            if found and control_type(found[0].key) == ControlType.ABORT:
                ignored.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ignored):
            seen += found
    return seen


def kept(log: Log) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of every record."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for data, position, header in batches_of(log)
        if not header.is_control
        for record in records(data, position, header, max_bytes=EVERYTHING)
    ]


class InlineCleaner:
    """Runs a compactor's job in the caller's thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def start(self, job: CleanerJob, replace: Replace) -> Completion[Outcome]:
        try:
            for step in clean(self._disk, job):
                if isinstance(step, Replacement):
                    if not replace(step).result():
                        return completed(None)
                elif isinstance(step, CleaningResult):
                    return completed(step)
        except (KafkaError, StorageError) as error:
            return completed(failure_of(error))
        raise AssertionError("a cleaning ends with its result")

    def on_idle(self) -> None: ...
