"""Producer state of one log: the last batches of each producer and the open transactions (Kafka: ProducerStateManager).

FORMAT   `<20-digit offset>.snapshot`, big-endian: i16 version 1, u32 CRC-32C of all that follows, i32 entries, each
              0  i64  producer id                    26  i64  timestamp of the last batch
              8  i16  epoch                          34  i32  epoch of the coordinator that wrote the last marker
             10  i32  last sequence, -1 for none     38  i64  first offset of the open transaction, -1 for none
             14  i64  last offset, -1 for none
             22  i32  last offset delta
         It contains the effects of all batches below its offset.
RULES    1. A batch equal to one of the producer's last five is a duplicate: it is not appended, and its offset is returned.
         2. A producer's sequences have no gap, 0 follows 2**31 - 1, and a new epoch starts at 0. An unknown producer may
            start anywhere, because its records may have been deleted; with transactions v2 it must start at 0, since every
            transaction is a new epoch (KIP-890).
         3. An older epoch is always rejected. Only client sequences are checked: followers and recovery repeat what a
            leader has accepted.
         4. `check` changes nothing. `reserve` follows when a batch has its offset, `update` when it is in the log, in the
            same order; checks include reserved batches.
         5. A retry of a reserved batch that is not in the log yet gets a retriable error.
         6. A transaction counts as open until its marker is below the high watermark.
         7. Idle producers expire, unless they have an open transaction.
NOT HERE Files and when they are written (producer_snapshots.py), the index of aborted transactions (segments/indexes.py), the
         coordinator's view of a transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from protocol.control_records import ControlType, control_type, coordinator_epoch_of
from protocol.crc32c import crc32c
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import (
    BATCH_OVERHEAD,
    CONTROL_BIT,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    records,
)

REMEMBERED_BATCHES: Final = 5
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_SUFFIX: Final = ".snapshot"
NO_OFFSET: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF
DEFAULT_EXPIRATION_MS: Final = 24 * 3600 * 1000
MAX_MARKER_BYTES: Final = 1024 * 1024

# The only record of a marker as every broker writes it: lengths, zero deltas, versions, and the variable fields between.
_MARKER = Struct(">7sh3sis")
_AROUND: Final = (b"\x20\0\0\0\x08\0\0", b"\x0c\0\0", b"\0")
_MARKER_BYTES: Final = BATCH_OVERHEAD + _MARKER.size
_KINDS: Final = frozenset({int(ControlType.ABORT), int(ControlType.COMMIT)})
_MARKER_ATTRIBUTES: Final = CONTROL_BIT | TRANSACTIONAL_BIT
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


_new_tuple = tuple.__new__


class CorruptSnapshot(Exception):
    """A snapshot file is corrupt; an earlier snapshot and the log are still usable."""


class Duplicate(NamedTuple):
    """A batch that is in the log already."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class EndTransactionMarker(NamedTuple):
    """The contents of a transaction marker."""

    is_commit: bool
    coordinator_epoch: int
    timestamp_ms: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    is_aborted: bool
    last_stable_offset: int  # of the log at the marker, ignoring the high watermark


class BatchMetadata(NamedTuple):
    """A batch of a producer."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """The state of one producer."""

    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[BatchMetadata, ...] = ()
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """The last sequence of this epoch; -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def copy(self) -> ProducerEntry:
        """A copy that can be updated independently."""
        return ProducerEntry(
            self.epoch, self.batches, self.last_timestamp, self.coordinator_epoch, self.txn_first_offset
        )

    def add(self, header: BatchHeader) -> None:
        """Add a batch of records."""
        first, delta, timestamp = header.base_sequence, header.last_offset_delta, header.max_timestamp
        last = (first + delta) & MAX_SEQUENCE if first != NO_SEQUENCE else NO_SEQUENCE
        batch = _new_tuple(BatchMetadata, (first, last, header.base_offset + delta, delta, timestamp))
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches = (batch,)
        else:
            self.batches = (*self.batches[-REMEMBERED_BATCHES + 1 :], batch)
        self.last_timestamp = timestamp
        if self.txn_first_offset < 0 and header.attributes & TRANSACTIONAL_BIT:
            self.txn_first_offset = header.base_offset

    def prepend(self, header: BatchHeader) -> None:
        """Add a batch if it is directly before the known ones, and fewer than five are known."""
        if len(self.batches) in {0, REMEMBERED_BATCHES} or header.producer_epoch != self.epoch:
            return
        first, delta = header.base_sequence, header.last_offset_delta
        last = (first + delta) & MAX_SEQUENCE
        if first == NO_SEQUENCE or (last + 1) & MAX_SEQUENCE != self.batches[0].first_sequence:
            return
        batch = BatchMetadata(first, last, header.base_offset + delta, delta, header.max_timestamp)
        self.batches = (batch, *self.batches)

    def end(self, epoch: int, marker: EndTransactionMarker) -> None:
        """Apply the marker that ends the transaction, possibly with a higher epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp_ms
        self.txn_first_offset = NO_OFFSET


class ProducerState:
    """The state of all producers of one log."""

    __slots__ = (
        "_applied_reservations", "_completed", "_open", "_reserved", "_reserved_entries", "partition", "producers",
    )  # fmt: skip

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.producers: dict[int, ProducerEntry] = {}
        # None instead of empty dicts: most logs have no transactions.
        self._open: dict[int, int] | None = None  # first offset -> producer id, ascending
        # First offset -> offset of the marker, ascending, at or above the high watermark.
        self._completed: dict[int, int] | None = None
        self._reserved: list[tuple[BatchHeader, EndTransactionMarker | None]] = []  # an empty deque has 0.7 KiB
        # `producers` after the first `_applied_reservations` reserved batches.
        self._reserved_entries: dict[int, ProducerEntry] | None = None
        self._applied_reservations = 0

    # ---- the steps of an append ----------------------------------------------------------------------------

    def check(
        self, header: BatchHeader, offset: int, *, is_client: bool = True, begins_at_0: bool = False
    ) -> Duplicate | None:
        """Check a producer's data batch at `offset`; returns the original of a duplicate, raises KafkaError as Kafka does."""
        producer_id = header.producer_id
        known = self.producers.get(producer_id)
        if self._reserved:
            known = self._with_reserved(producer_id, known)
        if known is None:
            if header.producer_epoch < NO_PRODUCER_EPOCH:
                raise self._older_epoch(header, offset, NO_PRODUCER_EPOCH)
            if begins_at_0 and header.base_sequence != 0:
                why = (
                    f"{header.base_sequence} (incoming seq. number). Expected sequence 0 for transactions v2 idempotent "
                    "producer with no existing state."
                )
                raise self._out_of_order("Invalid sequence number for", header, offset, why)
            return None
        batches = known.batches
        if is_client and header.producer_epoch == known.epoch:
            first = header.base_sequence
            following = batches[-1].last_sequence + 1 & MAX_SEQUENCE if batches else 0
            if first != following:
                if duplicate := self._duplicate(header, batches):
                    return duplicate
                if known.epoch != NO_PRODUCER_EPOCH:
                    why = f"{first} (incoming seq. number), {known.last_sequence} (current end sequence number)"
                    raise self._out_of_order("Out of order sequence number for", header, offset, why)
        elif header.producer_epoch < known.epoch:
            raise self._older_epoch(header, offset, known.epoch)
        elif is_client and header.base_sequence != 0 and known.epoch != NO_PRODUCER_EPOCH:
            why = (
                f"{header.producer_epoch} (request epoch), {header.base_sequence} (seq. number), "
                f"{known.epoch} (current producer epoch)"
            )
            raise self._out_of_order("Invalid sequence number for new epoch of", header, offset, why)
        if known.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {producer_id} at offset {offset} in partition "
                f"{self.partition}",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker, offset: int) -> None:
        """Check a transaction marker: an older producer or coordinator epoch is rejected."""
        known = self.latest(header.producer_id)
        if known is None:
            return
        if header.producer_epoch < known.epoch:
            raise self._older_epoch(header, offset, known.epoch)
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {header.producer_id} at offset {offset} in partition "
                f"{self.partition}: {marker.coordinator_epoch} (zombie), {known.coordinator_epoch} (current)",
            )

    def latest(self, producer_id: int) -> ProducerEntry | None:
        """The state of a producer after all that is reserved, for a look; None if it is unknown."""
        return self._with_reserved(producer_id, self.producers.get(producer_id))

    def reserve(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> None:
        """Record a checked batch whose offset is assigned (in the header) and whose write is pending."""
        self._reserved.append((header, marker))

    def undecided(self) -> dict[int, int]:
        """The first offset of each transaction without a marker, after all that is reserved, by producer id; ascending."""
        undecided = {producer_id: first for first, producer_id in (self._open or {}).items()}
        for reserved, marker in self._reserved:
            decide(undecided, reserved, marker)
        return undecided

    def update(
        self, header: BatchHeader, marker: EndTransactionMarker | None = None, high_watermark: int = 0
    ) -> CompletedTransaction | None:
        """Apply a batch that is in the log; returns the transaction that its marker has ended."""
        if self._reserved:
            reserved, _ = self._reserved.pop(0)
            assert reserved.base_offset == header.base_offset, (
                "batches reach the log in the order in which they were reserved"
            )
            if not self._reserved:
                self._clear_reserved_entries()
            elif self._applied_reservations:
                self._applied_reservations -= 1
            elif self._reserved_entries is not None:
                self._reserved_entries.pop(header.producer_id, None)
        producer_id = header.producer_id
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers[producer_id] = producer = ProducerEntry()
        if marker is not None:
            self._forget_completed(high_watermark)
            return self._complete(producer, header, marker)
        if header.attributes & CONTROL_BIT:
            return None  # a marker whose record was removed by compaction
        was_open = producer.txn_first_offset
        producer.add(header)
        if producer.txn_first_offset != was_open:
            if self._open is None:
                self._open = {}
            self._open[producer.txn_first_offset] = producer_id
        return None

    def _complete(
        self, producer: ProducerEntry, header: BatchHeader, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        first = producer.txn_first_offset
        producer.end(header.producer_epoch, marker)
        if first < 0:
            return None  # the transaction has no records in this partition
        undecided = self._open or {}
        undecided.pop(first, None)
        if self._completed is None:
            self._completed = {}
        self._completed[first] = header.base_offset
        stable = next(iter(undecided), header.base_offset + 1)
        return CompletedTransaction(header.producer_id, first, header.base_offset, not marker.is_commit, stable)

    def _with_reserved(self, producer_id: int, known: ProducerEntry | None) -> ProducerEntry | None:
        """The producer after all reserved batches."""
        if not self._reserved:
            return known
        ahead = self._reserved_entries
        if ahead is None:
            ahead = self._reserved_entries = {}
        for header, marker in islice(self._reserved, self._applied_reservations, None):
            producer = ahead.get(header.producer_id)
            if producer is None:
                committed = self.producers.get(header.producer_id)
                ahead[header.producer_id] = producer = ProducerEntry() if committed is None else committed.copy()
            if marker is None:
                producer.add(header)
            else:
                producer.end(header.producer_epoch, marker)
        self._applied_reservations = len(self._reserved)
        return ahead.get(producer_id, known)

    def _clear_reserved_entries(self) -> None:
        self._reserved_entries = None
        self._applied_reservations = 0

    def _duplicate(self, header: BatchHeader, batches: tuple[BatchMetadata, ...]) -> Duplicate | None:
        first, last = header.base_sequence, header.last_sequence
        for batch in batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                if self._reserved and batch.last_offset >= self._reserved[0][0].base_offset:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The same batch is still being written")
                return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp_ms)
        return None

    def _older_epoch(self, header: BatchHeader, offset: int, last_seen: int) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {header.producer_id} at offset {offset} in {self.partition} is "
            f"{header.producer_epoch}, which is smaller than the last seen epoch {last_seen}",
        )

    def _out_of_order(self, what: str, header: BatchHeader, offset: int, why: str) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"{what} producer {header.producer_id} at offset {offset} in partition {self.partition}: {why}",
        )

    # ---- transactions ---------------------------------------------------------------------------------------

    @property
    def first_undecided_offset(self) -> int | None:
        """The first offset of the oldest transaction without a marker."""
        return next(iter(self._open)) if self._open else None

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The lower bound of what a read_committed consumer may not read yet (rule 6)."""
        if not self._open and not self._completed:
            return None
        undecided = self.first_undecided_offset
        self._forget_completed(high_watermark)
        if not self._completed:
            return undecided
        unreplicated = min(self._completed)
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def _forget_completed(self, high_watermark: int) -> None:
        known = self._completed
        if known and next(iter(known.values())) < high_watermark:  # the oldest marker; a replay keeps all
            self._completed = {first: marker for first, marker in known.items() if marker >= high_watermark} or None

    # ---- expiration and snapshots ---------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all producers."""
        self.producers.clear()
        self._open = self._completed = None
        self._reserved.clear()
        self._clear_reserved_entries()

    def expire(self, wall_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> int:
        """Remove idle producers; returns their number."""
        idle = [
            producer_id
            for producer_id, producer in self.producers.items()
            if _is_idle(producer, wall_ms, expiration_ms)
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        return len(idle)

    def snapshot(self) -> bytes:
        """The snapshot after all batches that are reserved or in the log."""
        entries = [_COUNT.pack(0)]
        ids = {header.producer_id for header, _ in self._reserved}
        for producer_id in (*self.producers, *(ids - self.producers.keys())):
            producer = self._with_reserved(producer_id, self.producers.get(producer_id))
            assert producer is not None
            sequence, offset, delta = NO_SEQUENCE, NO_OFFSET, 0
            if producer.batches:
                _, sequence, offset, delta, _ = producer.batches[-1]
            entries.append(
                _ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    sequence,
                    offset,
                    delta,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.txn_first_offset,
                )
            )
        entries[0] = _COUNT.pack(len(entries) - 1)
        body = b"".join(entries)
        return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body

    def restore(self, snapshot: Buffer, wall_ms: int) -> None:
        """Replace the state by a snapshot's, without expired producers; CorruptSnapshot leaves it unchanged."""
        found = _read_snapshot(snapshot)
        self._set(
            [
                (producer_id, producer)
                for producer_id, producer in found
                if not _is_idle(producer, wall_ms, DEFAULT_EXPIRATION_MS)
            ]
        )

    def summary(self) -> list[list[int]]:
        """The fields of each producer and of its last batches, for `resume`; nothing is reserved."""
        return [
            [
                producer_id,
                producer.epoch,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
                *[number for batch in producer.batches for number in batch],
            ]
            for producer_id, producer in self.producers.items()
        ]

    def resume(self, summary: list[list[int]]) -> None:
        """Replace the state by that of a summary."""
        self._set(
            [
                (
                    producer_id,
                    ProducerEntry(epoch, _batches_of(numbers), last_timestamp, coordinator_epoch, txn_first_offset),
                )
                for producer_id, epoch, last_timestamp, coordinator_epoch, txn_first_offset, *numbers in summary
            ]
        )

    def _set(self, producers: Iterable[tuple[int, ProducerEntry]]) -> None:
        self.clear()
        self.producers.update(producers)
        undecided = sorted(
            (producer.txn_first_offset, producer_id)
            for producer_id, producer in self.producers.items()
            if producer.txn_first_offset >= 0
        )
        self._open = dict(undecided) or None


def decide(
    undecided: dict[int, int], header: BatchHeader, marker: EndTransactionMarker | None
) -> CompletedTransaction | None:
    """Apply a batch that has its offset to `ProducerState.undecided`; returns the transaction that it will end."""
    producer_id, offset = header.producer_id, header.base_offset
    if marker is None:
        if header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT) == TRANSACTIONAL_BIT:
            undecided.setdefault(producer_id, offset)
        return None
    first = undecided.pop(producer_id, None)
    if first is None:
        return None  # the transaction has no records in this partition
    stable = next(iter(undecided.values()), offset + 1)
    return CompletedTransaction(producer_id, first, offset, not marker.is_commit, stable)


def _batches_of(numbers: list[int]) -> tuple[BatchMetadata, ...]:
    width = len(BatchMetadata._fields)
    return tuple([BatchMetadata(*numbers[start : start + width]) for start in range(0, len(numbers), width)])


def _is_idle(producer: ProducerEntry, wall_ms: int, expiration_ms: int) -> bool:
    return producer.txn_first_offset < 0 and wall_ms - producer.last_timestamp >= expiration_ms


def _read_snapshot(snapshot: Buffer) -> list[tuple[int, ProducerEntry]]:
    try:
        version, crc = _HEAD.unpack_from(snapshot)
        (count,) = _COUNT.unpack_from(snapshot, _HEAD.size)
    except struct.error:
        raise CorruptSnapshot(f"a snapshot of {len(snapshot)} bytes is truncated") from None
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"snapshot version {version} is not supported")
    if crc32c(memoryview(snapshot)[_HEAD.size :]) != crc:
        raise CorruptSnapshot("the checksum does not match")
    start = _HEAD.size + _COUNT.size
    if count < 0 or start + count * _ENTRY.size != len(snapshot):
        raise CorruptSnapshot(f"{len(snapshot)} bytes cannot hold {count} producers")
    found: list[tuple[int, ProducerEntry]] = []
    for position in range(start, len(snapshot), _ENTRY.size):
        producer_id, epoch, last, offset, delta, timestamp, coordinator_epoch, first = _ENTRY.unpack_from(
            snapshot, position
        )
        batches = (BatchMetadata((last - delta) & MAX_SEQUENCE, last, offset, delta, timestamp),) if offset >= 0 else ()
        found.append((producer_id, ProducerEntry(epoch, batches, timestamp, coordinator_epoch, first)))
    return found


def read_end_transaction_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch; None if it is not a transaction's, or was removed by compaction."""
    if not header.is_control or header.producer_id < 0 or not header.record_count:
        return None
    if header.size == _MARKER_BYTES and header.attributes == _MARKER_ATTRIBUTES:
        before, kind, between, coordinator_epoch, after = _MARKER.unpack_from(buffer, position + BATCH_OVERHEAD)
        if (before, between, after) == _AROUND and kind in _KINDS:
            return EndTransactionMarker(kind == ControlType.COMMIT, coordinator_epoch, header.base_timestamp)
    record = records(buffer, position, header, max_bytes=MAX_MARKER_BYTES)[0]
    kind = control_type(record.key)
    if kind not in _KINDS:
        return None
    return EndTransactionMarker(kind == ControlType.COMMIT, coordinator_epoch_of(record.value), record.timestamp_ms)


def snapshot_name(offset: int) -> str:
    """The file name of the snapshot at an offset."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offset(name: str) -> int | None:
    """The offset in a snapshot's file name; None for any other name."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    return int(stem) if stem != name and stem.isascii() and stem.isdigit() else None
