"""Opening a log: engine, leader epochs and producer state, made consistent with each other.

RULES    1. After a clean close nothing is scanned: the newest snapshot restores the producers, and only batches after it
            are read (none after a close by this broker).
         2. Otherwise all batches from the segment of the recovery point on are checked, the log is truncated at the first
            invalid one, and epochs, producers and aborted transactions of that range are rebuilt from the batches.
         3. The producer state at the start of the scan is restored from a snapshot and the batches after it. Later
            snapshots may be torn or missing: they are written again at each segment start, and are not read before.
         4. An unreadable leader epoch file is rebuilt from all batches.
         5. A snapshot contains the last batch of each producer, but a client may retry any of the last five: the
            other four are read from the batches before the snapshot, within RECALLED_BYTES, or fewer if these suffice.
         6. A log that ends below its log start offset (all records were deleted, then the rest was lost) restarts empty there.
NOT HERE Checking batches (the engine's `recover`); which logs are recovered, and when (log_manager.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import BatchHeader, headers
from storage.engine import AbortedTransaction, Engine
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import Disk
from storage.log.leader_epoch_cache import LeaderEpochCache
from storage.log.producer_snapshots import ProducerSnapshots, StoredSnapshots, snapshot_offsets
from storage.log.producer_state import (
    REMEMBERED_BATCHES,
    CompletedTransaction,
    ProducerState,
    read_end_transaction_marker,
)
from storage.stored_state import StoresState

REPLAY_BYTES = 1024 * 1024
RECALLED_BYTES = 128 * 1024

_log = logging.getLogger("barnabas.storage")


class RecoveredLog(NamedTuple):
    """The parts of a log that was opened."""

    engine: Engine
    epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: ProducerSnapshots
    log_start_offset: int
    deleted_files: list[str]
    """Files to be deleted."""


def open_log(
    disk: Disk,
    directory: str,
    name: str,
    new_engine: Callable[[], Engine],
    *,
    recovery_point: int | None,
    log_start_offset: int,
) -> RecoveredLog:
    """Open the log in a partition's directory; `recovery_point`: None after a clean close."""
    engine = new_engine()
    epochs, snapshots, start_offset = _open_parts(disk, directory, engine, recovery_point)
    snapshots.delete_before(engine.start_offset)  # an older one may reappear after a loss of power
    producers = ProducerState(name)
    if start_offset is not None:
        _recover(engine, epochs, producers, snapshots, start_offset)
        if snapshots.delete_after(engine.end_offset) and not isinstance(snapshots, StoredSnapshots):
            disk.sync_dir(directory)  # else they could reappear and be applied to other batches
    if recovery_point is not None and engine.end_offset < recovery_point:
        _log.warning(
            "%s ends at offset %d, but was durable up to %d: records are lost", name, engine.end_offset, recovery_point
        )
    if epochs.is_unreadable:
        _find_epochs(engine, epochs)
    if engine.end_offset < log_start_offset:
        snapshots.delete_after(-1)  # before the engine syncs the directory
        engine.reset(log_start_offset)
        engine.end_truncation()
        epochs.truncate(0)
        producers.clear()
    end_offset = engine.end_offset
    log_start_offset = max(log_start_offset, engine.start_offset)
    epochs.truncate(end_offset)
    epochs.trim(log_start_offset)
    snapshots.delete_after(end_offset)
    if start_offset is None:
        restore_producers(engine, producers, snapshots, end_offset, is_clean=True)
    deleted_files = []
    if len(snapshots.offsets) > 1:
        deleted_files = snapshots.rename_strays({segment.base_offset for segment in engine.segments()})
    return RecoveredLog(engine, epochs, producers, snapshots, log_start_offset, deleted_files)


def _open_parts(
    disk: Disk, directory: str, engine: Engine, recovery_point: int | None
) -> tuple[LeaderEpochCache, ProducerSnapshots, int | None]:
    """Leader epochs, producer snapshots, and the start of the engine's recovery."""
    if isinstance(engine, StoresState):
        start_offset = engine.open(recovery_point)
        known = engine.leader_epochs()
        epochs = LeaderEpochCache(None, "", ([epoch for epoch, _ in known], [offset for _, offset in known]))
        return epochs, StoredSnapshots(disk, directory, engine), start_offset
    names = disk.listdir(directory)
    start_offset = engine.open(recovery_point, names)
    epochs = LeaderEpochCache(disk, f"{directory}/{LEADER_EPOCHS}")
    return epochs, ProducerSnapshots(disk, directory, snapshot_offsets(names)), start_offset


def _recover(
    engine: Engine, epochs: LeaderEpochCache, producers: ProducerState, snapshots: ProducerSnapshots, start_offset: int
) -> None:
    restore_producers(engine, producers, snapshots, start_offset, is_clean=False)
    epochs.truncate(start_offset)
    snapshots.invalidate(start_offset)
    if start_offset > engine.start_offset and not snapshots.has(start_offset):
        snapshots.write(start_offset, producers.snapshot())
    starts = [segment.base_offset for segment in engine.segments()]
    segment_starts = [base for base in starts if base >= max(start_offset, 1) and not snapshots.has(base)]

    def on_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
        while segment_starts and segment_starts[0] <= header.base_offset:
            snapshots.write(segment_starts.pop(0), producers.snapshot())
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            aborted = replay(producers, buffer, position, header)
            if aborted is not None:
                engine.add_aborted(aborted)

    engine.recover(start_offset, on_batch)
    for offset in segment_starts:
        if offset <= engine.end_offset:
            snapshots.write(offset, producers.snapshot())


def _find_epochs(engine: Engine, epochs: LeaderEpochCache) -> None:
    epochs.truncate(0)
    for _, _, header in _batches(engine, engine.start_offset, engine.end_offset, REPLAY_BYTES):
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)


def _batches(engine: Engine, offset: int, end_offset: int, max_bytes: int) -> Iterator[tuple[Buffer, int, BatchHeader]]:
    """The batches from `offset` to below `end_offset`, each with a buffer that contains it and its position there."""
    view = engine.view()
    while offset < end_offset:
        batches = headers(buffer := view.read_batches(offset, max_bytes))  # may reach beyond `end_offset`
        if not batches:
            return
        for position, header in batches:
            if header.base_offset >= end_offset:
                return
            yield buffer, position, header
        offset = header.next_offset


def restore_producers(
    engine: Engine, producers: ProducerState, snapshots: ProducerSnapshots, end_offset: int, *, is_clean: bool
) -> None:
    """Restore the producer state at `end_offset`: the newest valid snapshot, then the batches after it."""
    had_snapshots = bool(snapshots.offsets)  # corrupt ones are deleted below
    offset = snapshots.restore(producers, end_offset)
    if offset is None:
        if is_clean and not had_snapshots:
            return  # as in Kafka: a cleanly closed log without a snapshot never had producers
        offset = engine.start_offset
    offset = max(offset, engine.start_offset)
    if producers.producers:
        _restore_recent_batches(engine, producers, offset)
    for buffer, position, header in _batches(engine, offset, end_offset, REPLAY_BYTES):
        if header.producer_id >= 0:
            replay(producers, buffer, position, header)


def _restore_recent_batches(engine: Engine, producers: ProducerState, end_offset: int) -> None:
    """Restore the batches before the last one of each producer (rule 5)."""
    with suppress(KafkaError):  # these batches are not checked
        for max_bytes in (RECALLED_BYTES >> 6, RECALLED_BYTES >> 3, RECALLED_BYTES):
            start_offset = _recent_start(engine, end_offset, max_bytes)
            for _, _, header in reversed(list(_batches(engine, start_offset, end_offset, max_bytes))):
                producer = producers.producers.get(header.producer_id)
                if producer is not None and not header.is_control and header.next_offset <= end_offset:
                    producer.prepend(header)
            if all(len(producer.batches) == REMEMBERED_BATCHES for producer in producers.producers.values()):
                break


def _recent_start(engine: Engine, end_offset: int, max_bytes: int) -> int:
    """The offset about `max_bytes` before `end_offset`, assuming evenly sized batches in a segment."""
    begin, left = end_offset, max_bytes
    for base_offset, segment_end, size in reversed(engine.segments()):
        if base_offset < end_offset and size and left > 0:
            length = min(segment_end, end_offset) - base_offset
            share = size * length // (segment_end - base_offset)
            begin = base_offset + (length - length * left // share if share > left else 0)
            left -= share
    return begin


def replay(producers: ProducerState, buffer: Buffer, position: int, header: BatchHeader) -> AbortedTransaction | None:
    """Apply one batch of the log to the producer state; returns the transaction that it aborts."""
    completed = producers.update(header, read_end_transaction_marker(buffer, position, header))
    return aborted_transaction(completed) if completed is not None and completed.is_aborted else None


def aborted_transaction(completed: CompletedTransaction) -> AbortedTransaction:
    """The transaction index entry of an aborted transaction."""
    producer_id, first_offset, last_offset, _, last_stable_offset = completed
    return AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset)
