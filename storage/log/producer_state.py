"""What one log knows of its producers: the last batches of each, and the transactions that are open.

FORMAT   `<20-digit offset>.snapshot`, big-endian: i16 version 1, u32 CRC-32C of all that follows, i32 entries, each
              0  i64  producer id                    26  i64  timestamp of the last batch
              8  i16  epoch                          34  i32  epoch of the coordinator that wrote the last marker
             10  i32  last sequence, -1 for none     38  i64  first offset of the open transaction, -1 for none
             14  i64  last offset, -1 for none
             22  i32  last offset delta
         It holds what all batches below its offset have left behind.
RULES    1. A batch that is one of a producer's last five is a duplicate: it is not appended, the old offset is told.
         2. A batch follows its producer's last one without a gap, 0 comes after 2**31 - 1, and a new epoch starts
            at 0. A producer of whom nothing is known may start anywhere: what it did before may have been deleted;
            but not one of transactions of version 2, whose every transaction is a new epoch.
         3. An older epoch is refused for ever. Only a client's sequences are checked; followers and recovery check
            nothing, they repeat what a leader has decided.
         4. `check` changes nothing. `reserve` is said when a batch has its offset, `update` when it is in the log,
            in the same order; checks see what is reserved. `abandon` forgets the reserved ones that failed.
         5. Whoever repeats a batch that is reserved but not in the log is told to come again, never that it is there.
         6. A transaction counts as open until its marker lies below the high watermark.
         7. Idle producers are forgotten, but never one with an open transaction.
NOT HERE Files and when to write them (log.py), the index of aborted transactions (segments/indexes.py), whether the
         coordinator knows of a transaction.
"""

from __future__ import annotations

import struct
from collections import deque
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

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
    ControlType,
    control_type,
    coordinator_epoch_of,
    records,
)

REMEMBERED_BATCHES: Final = 5
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_SUFFIX: Final = ".snapshot"
NO_OFFSET: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF
DEFAULT_EXPIRATION_MS: Final = 24 * 3600 * 1000
MAX_MARKER_BYTES: Final = 1024 * 1024

# The only record of a marker as every broker writes it: lengths, no deltas, versions, and between them what it says.
_MARKER = Struct(">7sh3sis")
_AROUND: Final = (b"\x20\0\0\0\x08\0\0", b"\x0c\0\0", b"\0")
_MARKER_BYTES: Final = BATCH_OVERHEAD + _MARKER.size
_KINDS: Final = frozenset({int(ControlType.ABORT), int(ControlType.COMMIT)})
_MARKER_ATTRIBUTES: Final = CONTROL_BIT | TRANSACTIONAL_BIT
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """A snapshot file that cannot be believed; an earlier one and the log itself can still be."""


class Duplicate(NamedTuple):
    """A batch that is in the log already."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class EndTxn(NamedTuple):
    """What a marker says."""

    is_commit: bool
    coordinator_epoch: int
    timestamp_ms: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    is_aborted: bool
    last_stable_offset: int  # of the log then, high watermark aside


class Producer:
    """One producer's last batches, each as (first sequence, last sequence, last offset, offset delta, timestamp)."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "txn_first_offset")

    def __init__(
        self,
        epoch: int = NO_PRODUCER_EPOCH,
        batches: tuple[tuple[int, int, int, int, int], ...] = (),
        last_timestamp: int = NO_TIMESTAMP,
        coordinator_epoch: int = -1,
        txn_first_offset: int = NO_OFFSET,
    ) -> None:
        self.epoch = epoch
        self.batches = batches
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.txn_first_offset = txn_first_offset

    @property
    def last_sequence(self) -> int:
        """Of the last batch of this epoch; -1 when there is none."""
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    def copy(self) -> Producer:
        """The same, to go on from."""
        return Producer(self.epoch, self.batches, self.last_timestamp, self.coordinator_epoch, self.txn_first_offset)

    def add(self, header: BatchHeader) -> None:
        """Another batch of records."""
        first, delta, timestamp = header[11], header[6], header[8]
        last = (first + delta) & MAX_SEQUENCE if first != NO_SEQUENCE else NO_SEQUENCE
        batch = (first, last, header[0] + delta, delta, timestamp)
        if header[10] != self.epoch:
            self.epoch = header[10]
            self.batches = (batch,)
        else:
            self.batches = (*self.batches[-REMEMBERED_BATCHES + 1 :], batch)
        self.last_timestamp = timestamp
        if self.txn_first_offset < 0 and header[5] & TRANSACTIONAL_BIT:
            self.txn_first_offset = header[0]

    def recall(self, header: BatchHeader) -> bool:
        """The batch right before those that are known, of the same epoch; False where it is not, or there are enough."""
        if len(self.batches) in {0, REMEMBERED_BATCHES} or header[10] != self.epoch:
            return False
        first, delta = header[11], header[6]
        last = (first + delta) & MAX_SEQUENCE
        if first == NO_SEQUENCE or (last + 1) & MAX_SEQUENCE != self.batches[0][0]:
            return False
        self.batches = ((first, last, header[0] + delta, delta, header[8]), *self.batches)
        return True

    def end(self, epoch: int, marker: EndTxn) -> None:
        """The marker that ends its transaction, perhaps with a higher epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp_ms
        self.txn_first_offset = NO_OFFSET


class ProducerState:
    """All producers of one log."""

    __slots__ = (
        "_ahead_of", "_completed", "_counted", "_open", "_reserved", "partition", "producers",
    )  # fmt: skip

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offset -> producer id, ascending
        self._completed: dict[int, int] = {}  # first offset -> marker's offset, not yet below the high watermark
        self._reserved: deque[tuple[BatchHeader, EndTxn | None]] = deque()
        self._ahead_of: dict[int, Producer] = {}  # with the first `_counted` of the reserved batches added
        self._counted = 0

    # ---- an append, step by step --------------------------------------------------------------------------

    def check(
        self, header: BatchHeader, offset: int, *, is_client: bool = True, begins_at_0: bool = False
    ) -> Duplicate | None:
        """May this batch of a producer, not a marker, come next, at `offset`? A duplicate is not an error.

        Raises:
            KafkaError: as Kafka refuses it.
        """
        producer_id = header[9]
        known = self.producers.get(producer_id)
        if self._reserved:
            known = self._ahead(producer_id, known)
        if known is None:
            if header[10] < NO_PRODUCER_EPOCH:
                raise self._older_epoch(header, offset, NO_PRODUCER_EPOCH)
            if begins_at_0 and header[11] != 0:
                raise self._not_from_0(header, offset)
            return None
        batches = known.batches
        if is_client and header[10] == known.epoch:
            first = header[11]
            following = batches[-1][1] + 1 & MAX_SEQUENCE if batches else 0
            if first != following:
                if duplicate := self._duplicate(header, batches):
                    return duplicate
                if known.epoch != NO_PRODUCER_EPOCH:
                    raise self._out_of_order(header, offset, known)
        elif header[10] < known.epoch:
            raise self._older_epoch(header, offset, known.epoch)
        elif is_client and header[11] != 0 and known.epoch != NO_PRODUCER_EPOCH and header[10] != known.epoch:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for new epoch of producer {producer_id} at offset {offset} in partition "
                f"{self.partition}: {header[10]} (request epoch), {header[11]} (seq. number), "
                f"{known.epoch} (current producer epoch)",
            )
        if known.txn_first_offset >= 0 and not header[5] & TRANSACTIONAL_BIT:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {producer_id} at offset {offset} in partition "
                f"{self.partition}",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndTxn, offset: int) -> None:
        """May this marker be written? An older epoch, of producer or coordinator, may not."""
        known = self._ahead(header.producer_id, self.producers.get(header.producer_id))
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

    def reserve(self, header: BatchHeader, marker: EndTxn | None = None) -> None:
        """A checked batch has its offset (in the header) and is on its way into the log."""
        self._reserved.append((header, marker))

    def update(self, header: BatchHeader, marker: EndTxn | None = None) -> CompletedTransaction | None:
        """A batch of a producer is in the log; a marker may have ended a transaction."""
        if self._reserved:
            reserved = self._reserved.popleft()[0]
            assert reserved[0] == header[0], "batches reach the log in the order in which they were reserved"
            if not self._reserved:
                self._forget_ahead()
            elif self._counted:
                self._counted -= 1
            else:
                self._ahead_of.pop(header[9], None)
        producer_id = header[9]
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers[producer_id] = producer = Producer()
        if marker is not None:
            return self._complete(producer, header, marker)
        if header[5] & CONTROL_BIT:
            return None  # a marker whose record has been compacted away
        was_open = producer.txn_first_offset
        producer.add(header)
        if producer.txn_first_offset != was_open:
            self._open[producer.txn_first_offset] = producer_id
        return None

    def abandon(self, base_offset: int) -> None:
        """What was reserved at or behind `base_offset` has not been written."""
        while self._reserved and self._reserved[-1][0].base_offset >= base_offset:
            self._reserved.pop()
        self._forget_ahead()

    def _complete(self, producer: Producer, header: BatchHeader, marker: EndTxn) -> CompletedTransaction | None:
        first = producer.txn_first_offset
        producer.end(header.producer_epoch, marker)
        if first < 0:
            return None  # a transaction without records in this partition
        self._open.pop(first, None)
        self._completed[first] = header.base_offset
        stable = next(iter(self._open), header.base_offset + 1)
        return CompletedTransaction(header.producer_id, first, header.base_offset, not marker.is_commit, stable)

    def _ahead(self, producer_id: int, known: Producer | None) -> Producer | None:
        """The producer as it will be when all that is reserved is in the log."""
        ahead = self._ahead_of
        for header, marker in islice(self._reserved, self._counted, None):
            producer = ahead.get(header[9])
            if producer is None:
                committed = self.producers.get(header[9])
                ahead[header[9]] = producer = Producer() if committed is None else committed.copy()
            if marker is None:
                producer.add(header)
            else:
                producer.end(header.producer_epoch, marker)
        self._counted = len(self._reserved)
        return ahead.get(producer_id, known)

    def _forget_ahead(self) -> None:
        self._ahead_of.clear()
        self._counted = 0

    def _duplicate(self, header: BatchHeader, batches: tuple[tuple[int, int, int, int, int], ...]) -> Duplicate | None:
        first, last = header.base_sequence, header.last_sequence
        for batch in batches:
            if batch[0] == first and batch[1] == last:
                if self._reserved and batch[2] >= self._reserved[0][0].base_offset:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The same batch is still being written")
                return Duplicate(batch[2] - batch[3], batch[2], batch[4])
        return None

    def _older_epoch(self, header: BatchHeader, offset: int, last_seen: int) -> KafkaError:
        return KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of producer {header.producer_id} at offset {offset} in {self.partition} is "
            f"{header.producer_epoch}, which is smaller than the last seen epoch {last_seen}",
        )

    def _not_from_0(self, header: BatchHeader, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Invalid sequence number for producer {header.producer_id} at offset {offset} in partition "
            f"{self.partition}: {header.base_sequence} (incoming seq. number). Expected sequence 0 for transactions v2 "
            "idempotent producer with no existing state.",
        )

    def _out_of_order(self, header: BatchHeader, offset: int, known: Producer) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {header.producer_id} at offset {offset} in partition "
            f"{self.partition}: {header.base_sequence} (incoming seq. number), {known.last_sequence} (current "
            "end sequence number)",
        )

    # ---- transactions ---------------------------------------------------------------------------------------

    @property
    def first_undecided_offset(self) -> int | None:
        """Of the oldest transaction that no marker has ended."""
        return next(iter(self._open), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """Rule 6: what lies from here on may not be shown to a read_committed consumer."""
        undecided = next(iter(self._open), None)
        if not self._completed:
            return undecided
        unreplicated = min(self._completed)
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below the high watermark are decided for good."""
        if self._completed:
            self._completed = {first: marker for first, marker in self._completed.items() if marker >= high_watermark}

    # ---- life -----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Know nothing."""
        self.producers.clear()
        self._open.clear()
        self._completed.clear()
        self._reserved.clear()
        self._forget_ahead()

    def expire(self, wall_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> int:
        """Forget producers that have been idle for too long; how many."""
        idle = [
            producer_id
            for producer_id, producer in self.producers.items()
            if _is_idle(producer, wall_ms, expiration_ms)
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        return len(idle)

    def snapshot(self) -> bytes:
        """The snapshot's bytes, for the offset behind all that is reserved or in the log."""
        entries = [_COUNT.pack(0)]
        ids = {header.producer_id for header, _ in self._reserved}
        for producer_id in (*self.producers, *(ids - self.producers.keys())):
            producer = self._ahead(producer_id, self.producers.get(producer_id))
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
        """Know what a snapshot holds and nothing else, without producers that have been idle for too long.

        Raises:
            CorruptSnapshot: nothing has been restored.
        """
        found = _read_snapshot(snapshot)
        self.clear()
        for producer_id, producer in found:
            if not _is_idle(producer, wall_ms, DEFAULT_EXPIRATION_MS):
                self.producers[producer_id] = producer
        self._open = dict(
            sorted(
                (producer.txn_first_offset, producer_id)
                for producer_id, producer in self.producers.items()
                if producer.txn_first_offset >= 0
            )
        )


def _is_idle(producer: Producer, wall_ms: int, expiration_ms: int) -> bool:
    return producer.txn_first_offset < 0 and wall_ms - producer.last_timestamp >= expiration_ms


def _read_snapshot(snapshot: Buffer) -> list[tuple[int, Producer]]:
    try:
        version, crc = _HEAD.unpack_from(snapshot)
        (count,) = _COUNT.unpack_from(snapshot, _HEAD.size)
    except struct.error:
        raise CorruptSnapshot(f"a snapshot of {len(snapshot)} bytes is cut off") from None
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"a snapshot of version {version} is not known here")
    if crc32c(memoryview(snapshot)[_HEAD.size :]) != crc:
        raise CorruptSnapshot("the checksum does not match")
    start = _HEAD.size + _COUNT.size
    if count < 0 or start + count * _ENTRY.size != len(snapshot):
        raise CorruptSnapshot(f"{len(snapshot)} bytes cannot hold {count} producers")
    found: list[tuple[int, Producer]] = []
    for position in range(start, len(snapshot), _ENTRY.size):
        producer_id, epoch, last, offset, delta, timestamp, coordinator_epoch, first = _ENTRY.unpack_from(
            snapshot, position
        )
        batches = (((last - delta) & MAX_SEQUENCE, last, offset, delta, timestamp),) if offset >= 0 else ()
        found.append((producer_id, Producer(epoch, batches, timestamp, coordinator_epoch, first)))
    return found


def end_txn_of(buffer: Buffer, position: int, header: BatchHeader) -> EndTxn | None:
    """What the marker in a control batch says; None where it is no transaction's, or has been compacted away."""
    if not header.is_control or header.producer_id < 0 or not header.record_count:
        return None
    if header.size == _MARKER_BYTES and header.attributes == _MARKER_ATTRIBUTES:
        before, kind, between, coordinator_epoch, after = _MARKER.unpack_from(buffer, position + BATCH_OVERHEAD)
        if (before, between, after) == _AROUND and kind in _KINDS:
            return EndTxn(kind == ControlType.COMMIT, coordinator_epoch, header.base_timestamp)
    record = records(buffer, position, header, max_bytes=MAX_MARKER_BYTES)[0]
    kind = control_type(record.key)
    if kind not in _KINDS:
        return None
    return EndTxn(kind == ControlType.COMMIT, coordinator_epoch_of(record.value), record.timestamp_ms)


def snapshot_name(offset: int) -> str:
    """The file that a snapshot lies in."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offset(name: str) -> int | None:
    """The offset in a snapshot's file name; None for any other name."""
    stem = name.removesuffix(SNAPSHOT_SUFFIX)
    return int(stem) if stem != name and stem.isascii() and stem.isdigit() else None
