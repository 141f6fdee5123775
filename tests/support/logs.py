"""Logs for tests: client batches, a log on each engine, its readable records.

NOT HERE Batches with offsets, for engines (`tests/support/segments.py`); invalid ones (`tests/support/batches.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from hashlib import md5
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import Record, headers, records
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import Work
from storage.directories.log_maintenance import begin_checkpoints, retain
from storage.directories.log_manager import LogManager
from storage.engine import EngineFactory
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.append_pipeline import AppendInfo
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from storage.segments.segment_engine import SegmentEngine
from tests.support.scattered_engine import Store
from tests.support.segments import region_bytes

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150, file_delete_delay_ms=1000)
SMALL_FILE_BYTES = 1 << 20
"""Of commit logs: files of the default size would be allocated, 256 MiB each."""

EVERYTHING = 1 << 30
BIG = "x" * 300


class ProducerInfo(NamedTuple):
    """An idempotent or transactional producer and its next sequence."""

    producer_id: int
    epoch: int
    sequence: int
    transactional: bool = False


def retained(manager: LogManager, wall_ms: int) -> Iterator[Log]:
    """Apply retention and run its lookups, as `ReplicaManager` does; yields each log after a step that may have deleted."""
    steps, has_space = retain(manager, wall_ms), None
    finished: list[DiskLookup] = []
    with suppress(StopIteration):
        while True:
            log, lookup = steps.send(has_space)
            while finished:
                finished.pop().done()
            has_space = None if lookup is None else _run(manager, log, lookup)
            if lookup is None:
                yield log
            else:
                finished.append(lookup)


def truncated(manager: LogManager, log: Log, offset: int, *, is_full: bool = False) -> bool:
    """Truncate an open log, or empty it (`is_full`); False if there are no records to delete."""
    lookup = manager.full_truncation(log, offset, offset) if is_full else manager.truncation(log, offset)
    if lookup is not None:
        lookup.run()
        lookup.finish()
    return lookup is not None


def _run(manager: LogManager, log: Log, lookup: DiskLookup) -> bool:
    try:
        lookup.run()
    except StorageError as error:
        if error.is_full:
            log.cancel_opening(lookup)
            return False
        manager.go_offline(log.directory, error)
    else:
        lookup.finish()
    return True


def checkpoint_works(manager: LogManager) -> list[tuple[str, Work]]:
    """The works of a checkpoint whose steps all run now, by log directory."""
    works: list[tuple[str, Work]] = []
    for directory, steps in begin_checkpoints(manager):
        try:
            while True:
                next(steps)
        except StopIteration as end:
            if end.value is not None:
                works.append((directory, end.value))
    return works


def write_checkpoint(manager: LogManager) -> None:
    """Write a checkpoint now."""
    for _, work in checkpoint_works(manager):
        work()


def builder_of(producer: ProducerInfo | None, compression: Compression) -> BatchBuilder:
    """A batch builder, with or without a producer id."""
    producer = producer or ProducerInfo(-1, -1, -1)
    return BatchBuilder(
        compression=compression,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )


def produced(
    *values: bytes | str,
    timestamp_ms: int = NOW_MS,
    producer: ProducerInfo | None = None,
    compression: Compression = Compression.NONE,
    step_ms: int = 0,
) -> bytearray:
    """One batch as a client sends it."""
    builder = builder_of(producer, compression)
    for index, value in enumerate(values):
        builder.append(timestamp_ms + index * step_ms, None, value.encode() if isinstance(value, str) else value)
    return builder.build()


def marker(kind: ControlType, producer_id: int, epoch: int, coordinator_epoch: int = 0) -> bytearray:
    """A transaction marker."""
    return end_txn_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=NOW_MS,
    )


Engines = Callable[[Disk, Path], EngineFactory]
MakeLog = Callable[..., Log]


def segments(disk: Disk, root: Path) -> EngineFactory:
    """SegmentEngine."""
    del root
    return lambda directory, config: SegmentEngine(disk, directory, config)


def scattered(disk: Disk, root: Path) -> EngineFactory:
    """The tests' engine, with the state of a new process."""
    return Store(disk, str(root / "scattered")).engine


def commitlog(disk: Disk, root: Path) -> EngineFactory:
    """CommitLogEngine on the log of a new process, with small files, so that many are sealed."""
    log = CommitLog(disk, str(root), random_bytes=os.urandom, new_lock=nullcontext, file_bytes=2048)

    def made(directory: str, config: LogConfig) -> CommitLogEngine:
        topic, _, partition = Path(directory).name.rpartition("-")
        return CommitLogEngine(log, SlotId(md5(topic.encode()).digest(), int(partition)), "", config)

    return made


WITH_FILES = pytest.mark.parametrize("engines", [segments, scattered], ids=["segments", "scattered"], indirect=True)
"""Tests about the files of leader epochs and producer snapshots, which a commit log does not have."""


def log_at(
    root: Path,
    *,
    engines: Engines = segments,
    disk: Disk | None = None,
    config: LogConfig = SMALL,
    is_clean: bool = True,
    checkpoint: Checkpoint | None = None,
    topic: str = "t",
) -> Log:
    """The log of partition 0 of a topic, with the state of a new process."""
    (root / f"{topic}-0").mkdir(exist_ok=True)
    disk = disk or Disk()
    return Log(
        disk,
        engines(disk, root),
        str(root),
        topic,
        0,
        config,
        checkpoint=checkpoint or Checkpoint(),
        is_clean=is_clean,
        topic_id=TOPIC_ID,
    )


def append_records(
    log: Log,
    data: bytearray | memoryview,
    *,
    leader_epoch: int = 0,
    wall_ms: int = NOW_MS,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> AppendInfo:
    """Append a client's batch: prepare, write, commit."""
    prepared = wait_for_disk(
        log.open().appends.prepare, data, leader_epoch=leader_epoch, wall_ms=wall_ms, origin=origin
    )
    prepared.write()
    return prepared.commit(wall_ms)


def append(log: Log, *values: bytes | str, epoch: int = 0, **options: object) -> int:
    """Append one batch; returns its base offset."""
    data = produced(*values, **options)  # type: ignore[arg-type]
    return append_records(log, data, leader_epoch=epoch).base_offset


def append_as_follower(log: Log, data: Buffer, *, leader_epoch: int = UNDEFINED) -> AppendInfo | None:
    """Append a leader's batches; None when there is nothing to append."""
    prepared = log.open().prepare_as_follower(data, wall_ms=NOW_MS, leader_epoch=leader_epoch)
    if prepared is None:
        return None
    prepared.write()
    return prepared.commit(NOW_MS)


def fill(
    log: Log, count: int, value: str = BIG, *, epoch: int = 0, step_ms: int = 0, producer_id: int | None = None
) -> None:
    """Append batches of one record, `step_ms` apart; of a producer, with sequences from 0 on."""
    for number in range(count):
        producer = None if producer_id is None else ProducerInfo(producer_id, 0, number)
        append(log, value, epoch=epoch, timestamp_ms=NOW_MS + number * step_ms, producer=producer)


def flush(log: Log) -> None:
    """Make a log durable up to its current end."""
    log.open().flush.flush_all()


def snapshots(root: Path) -> list[int]:
    """The offsets of the producer snapshots of t-0."""
    return sorted(int(path.stem) for path in (root / "t-0").glob("*.snapshot"))


def refused(code: ErrorCode, act: Callable[[], object]) -> KafkaError:
    """The KafkaError of `act`; checks its code."""
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code == code
    return caught.value


def bytes_of(log: Log, offset: int | None = None, isolation: Isolation = Isolation.LOG_END) -> bytes:
    """All readable bytes, over several reads of whole batches."""
    at = log.log_start_offset if offset is None else offset
    found = b""
    while True:
        info = wait_for_disk(log.open().reader.read, at, EVERYTHING, isolation)
        data = region_bytes(info.regions)
        assert len(data) == info.size, f"{info.size} bytes were promised at {at}, {len(data)} are there"
        if not data:
            return found
        found += data
        position, last = headers(data)[-1]
        assert position + last.size == len(data), f"the region at {at} ends inside of a batch"
        assert last.next_offset > at, f"a read at {at} led back"
        at = last.next_offset


def records_of(log: Log, offset: int | None = None, isolation: Isolation = Isolation.LOG_END) -> list[Record]:
    """All readable data records."""
    data = bytes_of(log, offset, isolation)
    return [
        record
        for position, header in headers(data)
        if not header.is_control
        for record in records(data, position, header, max_bytes=EVERYTHING)
    ]


def values_of(log: Log, offset: int | None = None, isolation: Isolation = Isolation.LOG_END) -> list[tuple[int, str]]:
    """Offset and value of every record."""
    return [(record.offset, (record.value or b"").decode()) for record in records_of(log, offset, isolation)]


class Transactional(Protocol):
    """The transactional fields of a model's batch."""

    @property
    def base_offset(self) -> int: ...
    @property
    def producer(self) -> ProducerInfo | None: ...
    @property
    def ends(self) -> ControlType | None: ...


def first_open_offsets(batches: Iterable[Transactional]) -> dict[int, int]:
    """First offset of each producer's open transaction."""
    found: dict[int, int] = {}
    for batch in batches:
        if batch.producer is not None and batch.producer.transactional:
            if batch.ends is None:
                found.setdefault(batch.producer.producer_id, batch.base_offset)
            else:
                found.pop(batch.producer.producer_id, None)
    return found


def aborted(batches: Iterable[Transactional]) -> list[tuple[int, int, int]]:
    """Producer, first offset and marker's offset of each aborted transaction."""
    first: dict[int, int] = {}
    found = []
    for batch in batches:
        if batch.producer is None or not batch.producer.transactional:
            continue
        producer = batch.producer.producer_id
        if batch.ends is None:
            first.setdefault(producer, batch.base_offset)
        elif producer in first:
            begun = first.pop(producer)
            if batch.ends == ControlType.ABORT:
                found.append((producer, begun, batch.base_offset))
    return found
