"""The steps of an append to one log: prepare, write, commit.

RULES    1. `prepare` validates and assigns offsets, `write` only writes bytes and may run in another thread, `commit` makes
            the records readable. Several appends may be pending; they are committed in the order of their prepares. A write
            that fails takes the log directory offline, and `abort_all` fails the pending appends.
         2. `prepare` writes base offset, leader epoch and possibly timestamps into the caller's buffer: a
            `bytearray` or writable memoryview of the request frame that must not change before the commit.
         3. A duplicate batch of an idempotent producer is not written: the result is its existing offset.
         4. A leader epoch starts with the first batch that carries it; an append of an earlier epoch does not change the
            latest one.
         5. A producer snapshot is taken at the reservation. It is written at the commit, so it contains no aborted batch, or
            by an engine that stores it together with the append.
NOT HERE Batch validation (log_validator.py), sequences (producer_state.py), bytes on disk (engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import CONTROL_BIT, LOG_OVERHEAD, NO_TIMESTAMP, BatchHeader, patch
from storage.config.log_config import LogConfig
from storage.engine import AbortedTransaction, BatchInfo, Engine, Reservation, SharedLog, batch_info
from storage.io.disk_lookup import DiskLookup
from storage.log.leader_epoch_cache import LeaderEpochCache
from storage.log.log_offsets import LogOffsets
from storage.log.log_validator import AppendOrigin, BatchRules, validate
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.producer_state import (
    Duplicate,
    EndTransactionMarker,
    ProducerState,
    decide,
    read_end_transaction_marker,
)
from storage.log.recovery import RecoveredLog, aborted_transaction

_new_tuple = tuple.__new__

PositionedBatch = tuple[int, BatchHeader]
"""A batch's position in the buffer and its header."""


class AppendInfo(NamedTuple):
    """The result of an append."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 if the records keep their own timestamps."""
    log_start_offset: int
    duplicate: bool
    """Whether the records were in the log before."""
    leader_epoch: int


class PreparedAppend:
    """Records with assigned offsets, until the commit."""

    __slots__ = (
        "_pipeline", "duplicate", "is_aborted", "log_append_time_ms", "of_producers", "records",
        "reservation", "shared_log", "size", "snapshot",
    )  # fmt: skip

    def __init__(
        self, pipeline: AppendPipeline, records: Buffer, log_append_time_ms: int, reservation: Reservation | None
    ) -> None:
        self._pipeline = pipeline
        self.shared_log = pipeline.engine.shared_log
        """The log that this append shares with those of other partitions; None if there is none."""
        self.records = records
        """Empty after the commit."""
        self.size = len(records)
        self.log_append_time_ms = log_append_time_ms
        self.is_aborted = False
        self.duplicate: AppendInfo | None = None
        """The result for a duplicate batch: nothing is written (rule 3)."""
        # State for the later steps.
        self.reservation = reservation
        # Of batches with a producer id: the header with its offset, and the transaction marker.
        self.of_producers: Sequence[tuple[BatchHeader, EndTransactionMarker | None]] = ()
        self.snapshot: bytes | None = None  # of the producer state, if the reservation takes one

    def write(self) -> None:
        """Write the bytes; any thread. Raises StorageError."""
        if self.reservation is not None:
            self._pipeline.engine.write(self.reservation, self.records)

    def commit(self, wall_ms: int) -> AppendInfo:
        """Make the records readable.

        Raises:
            KafkaError: the log directory went offline, or the partition was deleted.
        """
        return self.duplicate or self._pipeline.commit(self, wall_ms)

    @property
    def end_offset(self) -> int:
        """The offset after its last record, if it is to be written."""
        assert self.reservation is not None
        return self.reservation.batches[-1].last_offset + 1


def write_job(appends: Sequence[PreparedAppend]) -> tuple[int, Callable[[], None], int]:
    """A write of appends that have the same `shared_log`: its size, what any thread may run, and the number of its calls."""
    first = appends[0]
    shared_log = first.shared_log
    size, run = first.size, first.write
    if len(appends) > 1:
        size, run = sum([append.size for append in appends]), partial(_write_together, shared_log, appends)
    return (size, run, len(appends)) if shared_log is None else (shared_log.write_size(size), run, 1)


def _write_together(shared_log: SharedLog | None, appends: Sequence[PreparedAppend]) -> None:
    if shared_log is None:
        for append in appends:
            append.write()
    else:
        shared_log.write_together(
            [(append.reservation, append.records) for append in appends if append.reservation is not None]
        )


class AppendPipeline:
    """The pending appends of one open log."""

    __slots__ = (
        "_epochs", "_name", "_offsets", "_pending", "_producers", "_rules", "_segment_bytes", "_snapshots",
        "committed_bytes", "engine", "has_rolled", "next_offset", "unflushed_since_ms",
    )  # fmt: skip

    def __init__(self, name: str, parts: RecoveredLog, config: LogConfig, offsets: LogOffsets) -> None:
        self._name = name
        self._offsets = offsets
        self.engine: Engine = parts.engine
        self._epochs: LeaderEpochCache = parts.epochs
        self._producers: ProducerState = parts.producers
        self._snapshots: ProducerSnapshots = parts.snapshots
        self._pending: list[PreparedAppend] = []  # an empty deque has 0.7 KiB
        self.next_offset = parts.engine.end_offset
        """The offset of the next prepared record."""
        self.committed_bytes = 0
        """The bytes of all appends since the log was opened."""
        self.has_rolled = False
        """Whether a segment was started since the last flush, so that the previous one is due."""
        self.unflushed_since_ms = -1
        """Wall time of the first commit after the last flush; -1 if there is none."""
        self.update_config(config)

    @property
    def has_pending(self) -> bool:
        """Whether an append is prepared and neither committed nor aborted."""
        return bool(self._pending)

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next append on."""
        self._rules = BatchRules(config, self._name)
        self._segment_bytes = config.segment_bytes

    def prepare(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> PreparedAppend | DiskLookup:
        """Validate a leader's records and assign their offsets, in place (rule 2).

        Raises:
            KafkaError: the records are rejected and the log is unchanged; RejectedRecords names the invalid records.
        """
        lookup = self.engine.prepare_append()
        if lookup is not None:
            return lookup
        valid, batches, log_append_time_ms = validate(records, self._rules, wall_ms, origin)
        if len(valid) > self._segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)  # without a message, as in Apache Kafka
        offset = self.next_offset
        markers = None
        if batches[0][1].producer_id >= 0 or len(batches) > 1:
            markers = _markers(valid, batches)
            duplicate = self._check_producers(batches, markers, offset, origin)
            if duplicate is not None:
                base_offset, last_offset, timestamp_ms = duplicate
                prepared = PreparedAppend(self, b"", timestamp_ms, None)
                prepared.duplicate = AppendInfo(
                    base_offset, last_offset, timestamp_ms, self._offsets.log_start_offset, True, leader_epoch
                )
                return prepared
        infos = []
        for position, header in batches:
            patch(valid, position, offset, leader_epoch)  # type: ignore[arg-type]  # rule 2: writable
            last = offset + header.last_offset_delta
            info = (position, header.batch_length + LOG_OVERHEAD, offset, last, header.max_timestamp, leader_epoch)
            infos.append(_new_tuple(BatchInfo, info))
            offset = last + 1
        return self._reserve(valid, log_append_time_ms, batches, markers, infos, wall_ms)

    def prepare_as_follower(self, records: Buffer, batches: list[PositionedBatch], wall_ms: int) -> PreparedAppend:
        """Reserve the place for a leader's batches, which keep their offsets; batches beyond `segment.bytes` are left out."""
        while len(batches) > 1 and batches[-1][0] + batches[-1][1].size > self._segment_bytes:
            batches.pop()
        position, last = batches[-1]
        size = position + last.size
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self._name}, which exceeds the maximum "
                f"configured segment size of {self._segment_bytes}.",
            )
        _, first = batches[0]
        if first.base_offset < self.next_offset:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Unexpected offset in append to {self._name}: {first.base_offset} is less than the next "
                f"offset {self.next_offset}",
            )
        infos = [batch_info(position, header) for position, header in batches]
        markers = _markers(records, batches)
        return self._reserve(memoryview(records)[:size], NO_TIMESTAMP, batches, markers, infos, wall_ms)

    def commit(self, prepared: PreparedAppend, wall_ms: int) -> AppendInfo:
        """Make the records readable (`PreparedAppend.commit`)."""
        reservation = prepared.reservation
        if prepared.is_aborted or reservation is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"An append to {self._name} did not succeed")
        oldest = self._pending.pop(0)
        assert oldest is prepared, "appends are committed in the order in which they were prepared"
        prepared.records = b""  # an append may wait long for its acks
        infos = reservation.batches
        first, last = infos[0], infos[-1]
        self.engine.publish(reservation)
        self.committed_bytes += prepared.size
        if prepared.snapshot is not None:
            self._snapshots.write(first.base_offset, prepared.snapshot)
            self.has_rolled |= reservation.rolled
        epochs = self._epochs
        if last.leader_epoch > epochs.latest:
            for info in infos:
                if info.leader_epoch > epochs.latest:
                    epochs.assign(info.leader_epoch, info.base_offset)
        for header, marker in prepared.of_producers:
            completed = self._producers.update(header, marker, self._offsets.high_watermark)
            if completed is not None and completed.is_aborted:
                self.engine.add_aborted(aborted_transaction(completed))
        if self.unflushed_since_ms < 0:
            self.unflushed_since_ms = wall_ms
        time_ms, log_start_offset = prepared.log_append_time_ms, self._offsets.log_start_offset
        return _new_tuple(
            AppendInfo, (first.base_offset, last.last_offset, time_ms, log_start_offset, False, last.leader_epoch)
        )

    def abort_all(self) -> None:
        """Mark all pending appends as aborted; files are not changed."""
        for prepared in self._pending:
            prepared.is_aborted = True
        self._pending.clear()

    def _reserve(
        self,
        records: Buffer,
        log_append_time_ms: int,
        batches: list[PositionedBatch],
        markers: list[EndTransactionMarker | None] | None,
        infos: list[BatchInfo],
        wall_ms: int,
    ) -> PreparedAppend:
        """Reserve the place of valid records; `markers` is None if no batch has a producer id."""
        reservation = self.engine.reserve(len(records), infos, wall_ms)
        prepared = PreparedAppend(self, records, log_append_time_ms, reservation)
        if reservation.takes_snapshot:
            prepared.snapshot = self._producers.snapshot()
        aborted: list[AbortedTransaction] = []
        if markers is not None:
            producers, of_producers = self._producers, []
            undecided: dict[int, int] | None = None  # until there is an abort marker
            for (_, header), marker, info in zip(batches, markers, infos, strict=True):
                if header.producer_id >= 0:
                    placed = _new_tuple(BatchHeader, (info.base_offset, *header[1:]))
                    if undecided is None and marker is not None and not marker.is_commit:
                        undecided = producers.undecided()
                    if undecided is not None:
                        completed = decide(undecided, placed, marker)
                        if completed is not None and completed.is_aborted:
                            aborted.append(aborted_transaction(completed))
                    producers.reserve(placed, marker)
                    of_producers.append((placed, marker))
            prepared.of_producers = of_producers
        if aborted or prepared.snapshot is not None:
            self._snapshots.write_with(reservation, prepared.snapshot, aborted)
        self._pending.append(prepared)
        self.next_offset = infos[-1].last_offset + 1
        return prepared

    def _check_producers(
        self,
        batches: list[PositionedBatch],
        markers: list[EndTransactionMarker | None],
        offset: int,
        origin: AppendOrigin,
    ) -> Duplicate | None:
        producers = self._producers
        for (_, header), marker in zip(batches, markers, strict=True):
            if header.producer_id >= 0:
                if marker is not None:
                    producers.check_marker(header, marker, offset)
                elif not header.attributes & CONTROL_BIT:
                    duplicate = producers.check(
                        header,
                        offset,
                        is_client=origin.is_client,
                        begins_at_0=origin == AppendOrigin.CLIENT_FROM_0,
                    )
                    if duplicate is not None:
                        return duplicate
            offset += header.last_offset_delta + 1
        return None


def _markers(records: Buffer, batches: list[PositionedBatch]) -> list[EndTransactionMarker | None]:
    """For each batch: its transaction marker, or None."""
    return [
        read_end_transaction_marker(records, position, header) if header.attributes & CONTROL_BIT else None
        for position, header in batches
    ]
