"""Opening a log: what lies on disk made into an engine, leader epochs and producers that agree.

RULES    1. After a clean close nothing is scanned: the newest snapshot tells the producers, and only batches behind it
            (there are none, if the close was ours) are read.
         2. Otherwise every batch from the segment of the recovery point on is checked, the log is cut at the first
            that is not whole, and epochs, producers and aborted transactions of that range come from the batches.
         3. Producers are known at the start of what is scanned: from a snapshot, and from the batches between it and
            there. Later snapshots may be torn or missing; they are taken anew on the way, where segments begin, and
            nobody reads the others.
         4. Leader epochs that nobody can read are found in all the batches.
         5. A snapshot tells the last batch of each producer, and a client may repeat any of the last five: the others are
            looked for in what lies right before it, as far as it can be read and is not long.
         6. A log that ends before its start offset (all of it was deleted, then the rest was lost) is empty there.
NOT HERE Checking batches (the engine's `recover`); which logs need it and when (log_manager.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from protocol.errors import KafkaError
from protocol.records import BatchHeader, headers
from storage.engine import AbortedTransaction, Buffer, Engine
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import Disk
from storage.log.leader_epoch_cache import LeaderEpochs
from storage.log.producer_snapshots import Snapshots
from storage.log.producer_state import CompletedTransaction, ProducerState, end_txn_of

REPLAY_BYTES = 1024 * 1024
RECALLED_BYTES = 128 * 1024

_log = logging.getLogger("barnabas.storage")


class OpenParts(NamedTuple):
    """What an open log consists of."""

    engine: Engine
    epochs: LeaderEpochs
    producers: ProducerState
    snapshots: Snapshots
    log_start_offset: int
    doomed: list[str]
    """Files that may be deleted."""


def open_parts(
    disk: Disk, directory: str, name: str, engine: Engine, *, recovery_point: int | None, log_start_offset: int
) -> OpenParts:
    """Open the log that lies in a partition's directory.

    Args:
        disk: the file system.
        directory: the partition's.
        name: of the partition, for what producers are told.
        engine: not opened yet.
        recovery_point: None after a clean close.
        log_start_offset: as it was checkpointed.
    """
    names = disk.listdir(directory)
    start_offset = engine.open(recovery_point, names)
    epochs = LeaderEpochs(disk, f"{directory}/{LEADER_EPOCHS}")
    snapshots = Snapshots(disk, directory, names)
    snapshots.trim(engine.start_offset)  # one that came back after a loss of power knows nothing of what came after it
    producers = ProducerState(name)
    if start_offset is not None:
        _recover(engine, epochs, producers, snapshots, start_offset)
        if snapshots.truncate(engine.end_offset):
            disk.sync_dir(directory)  # else they could come back, for what is appended in the place of their batches
    if recovery_point is not None and engine.end_offset < recovery_point:
        _log.warning(
            "%s ends at %d and was durable up to %d: records are lost", name, engine.end_offset, recovery_point
        )
    if epochs.is_lost:
        _find_epochs(engine, epochs)
    if engine.end_offset < log_start_offset:
        snapshots.clear()  # before the engine makes it durable
        engine.reset(log_start_offset)
        epochs.clear()
        producers.clear()
    end_offset = engine.end_offset
    log_start_offset = max(log_start_offset, engine.start_offset)
    epochs.truncate(end_offset)
    epochs.trim(log_start_offset)
    snapshots.truncate(end_offset)
    if start_offset is None:
        restore_producers(engine, producers, snapshots, end_offset, is_clean=True)
    doomed = []
    if len(snapshots.offsets) > 1:
        doomed = snapshots.set_strays_aside({segment.base_offset for segment in engine.segments()})
    return OpenParts(engine, epochs, producers, snapshots, log_start_offset, doomed)


def _recover(
    engine: Engine, epochs: LeaderEpochs, producers: ProducerState, snapshots: Snapshots, start_offset: int
) -> None:
    restore_producers(engine, producers, snapshots, start_offset, is_clean=False)
    epochs.truncate(start_offset)
    snapshots.doubt(start_offset)
    if start_offset > engine.start_offset and not snapshots.has(start_offset):
        snapshots.take(start_offset, producers.snapshot())
    marks = [segment.base_offset for segment in engine.segments() if segment.base_offset >= max(start_offset, 1)]

    def visit(buffer: Buffer, position: int, header: BatchHeader) -> None:
        while marks and marks[0] <= header.base_offset:
            snapshots.take(marks.pop(0), producers.snapshot())
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            aborted = replay(producers, buffer, position, header)
            if aborted is not None:
                engine.add_aborted(aborted)

    engine.recover(start_offset, visit)
    for offset in marks:
        if offset <= engine.end_offset:
            snapshots.take(offset, producers.snapshot())


def _find_epochs(engine: Engine, epochs: LeaderEpochs) -> None:
    epochs.clear()
    for header in _headers(engine, engine.start_offset):
        if header.leader_epoch > epochs.latest:
            epochs.assign(header.leader_epoch, header.base_offset)


def _headers(engine: Engine, offset: int) -> Iterator[BatchHeader]:
    while batches := headers(engine.read_batches(offset, REPLAY_BYTES)):
        for _, header in batches:
            yield header
        offset = batches[-1][1].next_offset


def restore_producers(
    engine: Engine, producers: ProducerState, snapshots: Snapshots, end_offset: int, *, is_clean: bool
) -> None:
    """Make `producers` know what all batches before `end_offset` have left behind."""
    had_snapshots = bool(snapshots.offsets)  # those that cannot be believed go
    offset = snapshots.restore(producers, end_offset)
    if offset is None:
        if is_clean and not had_snapshots:
            return  # as Kafka does: a cleanly closed log without a snapshot never had producers
        offset = engine.start_offset
    offset = max(offset, engine.start_offset)
    if producers.producers:
        _recall(engine, producers, offset)
    while offset < end_offset:
        batches = headers(buffer := engine.read_batches(offset, REPLAY_BYTES))
        if not batches:
            return
        for position, header in batches:
            if header.producer_id >= 0:
                replay(producers, buffer, position, header)
        offset = batches[-1][1].next_offset


def _recall(engine: Engine, producers: ProducerState, end_offset: int) -> None:
    """Rule 5."""
    with suppress(KafkaError):  # nobody has checked what lies there
        for header in reversed(list(_shortly_before(engine, end_offset))):
            producer = producers.producers.get(header.producer_id)
            if producer is not None and not header.is_control and header.next_offset <= end_offset:
                producer.recall(header)


def _shortly_before(engine: Engine, end_offset: int) -> Iterator[BatchHeader]:
    """The batches of about so many bytes, offsets being about equally far from each other in a segment."""
    begin, left = end_offset, RECALLED_BYTES
    for base_offset, segment_end, size in reversed(engine.segments()):
        if base_offset < end_offset and size and left > 0:
            length = min(segment_end, end_offset) - base_offset
            share = size * length // (segment_end - base_offset)
            begin = base_offset + (length - length * left // share if share > left else 0)
            left -= share
    while begin < end_offset:
        batches = headers(engine.read_batches(begin, RECALLED_BYTES))
        if not batches:
            return
        yield from (header for _, header in batches)
        begin = batches[-1][1].next_offset


def replay(producers: ProducerState, buffer: Buffer, position: int, header: BatchHeader) -> AbortedTransaction | None:
    """Let producers learn of one batch that is in the log; the transaction that it aborts, if it does."""
    completed = producers.update(header, end_txn_of(buffer, position, header))
    return aborted_by(completed) if completed is not None and completed.is_aborted else None


def aborted_by(completed: CompletedTransaction) -> AbortedTransaction:
    """What the index of aborted transactions has to say of a transaction that was aborted."""
    producer_id, first_offset, last_offset, _, last_stable_offset = completed
    return AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset)
