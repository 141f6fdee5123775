"""Reads records of partitions from their leaders, in offset order within each partition.

RULES    1. A thread for each leader fetches; the caller decodes. The next fetch is sent before its caller decodes the last.
         2. A partition ends at its stop offset, also if the last offsets are markers or compacted away.
         3. With `committed`, records of aborted transactions and markers are skipped (Kafka: CompletedFetch); without, markers.
         4. On a retriable error, or if the connection breaks, the partition continues at its position with new metadata.
         5. If retention deletes records before they are read, reading continues at the log's start, and `on_gap` is called.
         6. A response has room for some partitions only. Those that had records in it move to the end of the next request, as
            with Java's consumer. That a log has no records left is known only from a response without any.
NOT HERE The range of offsets (`cli/offset_ranges.py`), batches (`record_batches.py`).
"""

from __future__ import annotations

import itertools
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.client.batch_header import BatchHeader
from barnabas.client.cluster import (
    EARLIEST,
    PATIENCE_S,
    PAUSE_S,
    Cluster,
    Node,
    NoSuchTopic,
    Retriable,
    topic_array,
)
from barnabas.client.error_codes import OFFSET_OUT_OF_RANGE, RETRIABLE, refusal
from barnabas.client.errors import ClientError
from barnabas.client.record_batches import Record, batches_in, records_in
from barnabas.client.topic_partition import TopicPartition
from barnabas.client.wire import Api, Fields

MAX_BYTES = 16 << 20
PARTITION_MAX_BYTES = 2 << 20
MAX_WAIT_MS = 500
WAITING_FETCHES = 2
_ABORT = 0
_NO_EPOCH, _NO_SESSION = -1, (0, -1)


class FetchedPartition(NamedTuple):
    """A partition in a Fetch response."""

    partition: TopicPartition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: list[tuple[int, int]]
    """Producer id and first offset of aborted transactions."""
    data: memoryview


class Page(NamedTuple):
    """Records of a partition, and where its log begins and ends."""

    partition: TopicPartition
    records: list[Record]
    log_start: int
    last_stable_offset: int
    high_watermark: int
    next_offset: int
    """The offset after the page, behind markers and gaps."""


@dataclass
class _Position:
    """Where a partition is read next, and where it ends."""

    next: int
    stop: int | None
    failed_since: float | None = None


_Event = tuple["_Fetcher", list[FetchedPartition] | Exception]


@dataclass(eq=False)
class _Fetcher:
    """The connection to one leader, in a thread (rule 1)."""

    node: Node
    committed: bool
    events: queue.Queue[_Event]
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    """The next offset to fetch."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False

    def run(self) -> None:
        """Fetches until all partitions are removed, or the node fails."""
        served: dict[TopicPartition, int] = {}  # by partition, the number of the last response with records of it
        try:
            for number in itertools.count(1):
                with self.lock:
                    wanted = dict(sorted(self.partitions.items(), key=lambda entry: served.get(entry[0], 0)))
                if not wanted or self.closed:
                    return
                found = _fetched(self.node.ask(Api.FETCH, _question(wanted, committed=self.committed)))
                served |= {fetched.partition: number for fetched in found if fetched.data}
                with self.lock:
                    for fetched in found:
                        if fetched.partition in self.partitions and not fetched.error:
                            self.partitions[fetched.partition] = _after(fetched, wanted[fetched.partition])
                self._put(found)
        except Exception as failure:  # noqa: BLE001 the caller raises it; without the thread it would wait for ever
            self._put(failure)
        finally:
            self.node.close()

    def _put(self, event: list[FetchedPartition] | Exception) -> None:
        """Waits until the caller has taken earlier events, or has closed the reader."""
        while not self.closed:
            with suppress(queue.Full):
                self.events.put((self, event), timeout=PAUSE_S)
                return


class RecordReader:
    """Reads partitions from `next` to `stop` offsets; None as stop means for ever.

    `on_deleted` is called with a topic that was deleted, and the others are read on; without it, or without others, the error
    is raised.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Mapping[TopicPartition, tuple[int, int | None]],
        *,
        committed: bool = False,
        on_gap: Callable[[TopicPartition, int, int], None] | None = None,
        on_deleted: Callable[[str], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._committed = committed
        self._on_gap = on_gap
        self._on_deleted = on_deleted
        self._positions = {
            partition: _Position(start, stop)
            for partition, (start, stop) in ranges.items()
            if stop is None or start < stop
        }
        self._events: queue.Queue[_Event] = queue.Queue(WAITING_FETCHES)
        self._fetchers: set[_Fetcher] = set()
        self._unassigned = set(self._positions)
        """Partitions without a fetcher."""

    def pages(self, idle_s: float | None = None) -> Iterator[Page | None]:
        """Yields pages until all partitions end; None after each `idle_s` without one. Raises ClientError."""
        try:
            while self._positions:
                self._start_fetchers()
                try:
                    fetcher, found = self._events.get(timeout=PAUSE_S if self._unassigned else idle_s)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(found, Exception):
                    self._on_failure(fetcher, found)
                    continue
                is_empty = not any(fetched.data for fetched in found)
                for fetched in found:
                    # A fetcher may have fetched a partition again before its error was seen here.
                    if fetched.partition in fetcher.partitions and fetcher in self._fetchers:
                        page = self._page(fetched, response_is_empty=is_empty)
                        if page is not None:
                            yield page
        finally:
            self.close()

    def add(self, partition: TopicPartition) -> None:
        """Also reads this new partition, from its first record and for ever."""
        self._positions[partition] = _Position(0, None)
        self._unassigned.add(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Ends a partition."""
        self._positions.pop(partition, None)
        self._remove_from_fetchers(partition)

    def close(self) -> None:
        """Ends all fetchers; their threads end with their last response."""
        for fetcher in self._fetchers:
            fetcher.closed = True
        self._fetchers.clear()
        while not self._events.empty():
            self._events.get_nowait()

    def _start_fetchers(self) -> None:
        """Starts fetchers for the partitions that have none."""
        unassigned, self._unassigned = self._unassigned & self._positions.keys(), set()
        if not unassigned:
            return
        for leader, partitions in self._by_leader(unassigned).items():
            wanted = {partition: self._positions[partition].next for partition in partitions}
            try:
                fetcher = _Fetcher(self._cluster.connect(leader), self._committed, self._events, wanted)
            except Retriable as failure:
                self._unassign(wanted, failure)
                continue
            self._fetchers.add(fetcher)
            threading.Thread(target=fetcher.run, daemon=True).start()

    def _by_leader(self, partitions: set[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions of each leader, without those of topics that were deleted."""
        while partitions:
            try:
                return self._cluster.by_leader(partitions)
            except NoSuchTopic as failure:
                deleted = {partition for partition in self._positions if partition.topic == failure.topic}
                if self._on_deleted is None or deleted == self._positions.keys():
                    raise
                for partition in deleted:
                    self.drop(partition)
                self._on_deleted(failure.topic)
                partitions = partitions - deleted
        return {}

    def _on_failure(self, fetcher: _Fetcher, failure: Exception) -> None:
        if fetcher in self._fetchers:
            self._fetchers.discard(fetcher)
            if not isinstance(failure, Retriable):
                raise failure
            self._unassign(fetcher.partitions, failure)

    def _unassign(self, partitions: Mapping[TopicPartition, int], failure: Retriable) -> None:
        """Partitions need another fetcher; after a time without one that works, this raises (rule 2 of `cluster.py`)."""
        now = time.monotonic()
        for partition in partitions:
            position = self._positions.get(partition)
            if position is not None:
                position.failed_since = position.failed_since or now
                if now - position.failed_since > failure.patience_s:
                    raise ClientError(str(failure)) from failure
                self._unassigned.add(partition)

    def _remove_from_fetchers(self, partition: TopicPartition) -> None:
        for fetcher in self._fetchers:
            with fetcher.lock:
                fetcher.partitions.pop(partition, None)
        self._fetchers = {fetcher for fetcher in self._fetchers if fetcher.partitions}

    def _page(self, found: FetchedPartition, *, response_is_empty: bool) -> Page | None:
        partition, position = found.partition, self._positions[found.partition]
        if found.error:
            self._remove_from_fetchers(partition)
            if found.error == OFFSET_OUT_OF_RANGE:
                self._continue_at_start(partition, position)
            elif found.error not in RETRIABLE:
                raise refusal(found.error, str(partition))
            else:
                self._unassign({partition: position.next}, Retriable(str(refusal(found.error, str(partition)))))
            return None
        if not response_is_empty or position.stop is None:
            position.failed_since = None
        else:
            self._wait_for_more(partition, position)
        records = list(self._visible(found, position))
        if position.stop is not None and position.next >= position.stop:
            self.drop(partition)
        if not records and not found.data:
            return None
        return Page(partition, records, found.log_start, found.last_stable_offset, found.high_watermark, position.next)

    def _wait_for_more(self, partition: TopicPartition, position: _Position) -> None:
        """The leader has no data before the stop offset: it may not know yet that followers have it, or lost it."""
        now = time.monotonic()
        position.failed_since = position.failed_since or now
        if now - position.failed_since > PATIENCE_S:
            raise ClientError(
                f"{partition} ended at offset {position.stop}, and has lost its records from {position.next} on."
            )

    def _visible(self, found: FetchedPartition, position: _Position) -> Iterator[Record]:
        """The records from the position on (rule 3); moves the position."""
        aborted = sorted(found.aborted, key=lambda entry: entry[1], reverse=True)
        ended: set[int] = set()
        start, stop = position.next, position.stop
        for batch, data in batches_in(found.data):
            while aborted and aborted[-1][1] < batch.next_offset:
                ended.add(aborted.pop()[0])
            is_wanted = batch.next_offset > start and (stop is None or batch.base_offset < stop)
            if batch.is_control:
                if batch.producer_id in ended and _marker_type(data, batch, found.partition) == _ABORT:
                    ended.discard(batch.producer_id)
            elif is_wanted and not (batch.is_transactional and batch.producer_id in ended):
                records = records_in(found.partition.topic, found.partition.partition, batch, data)
                if batch.base_offset < start or (stop is not None and batch.next_offset > stop):
                    records = [
                        record
                        for record in records
                        if start <= record.offset and (stop is None or record.offset < stop)
                    ]
                yield from records
            position.next = max(position.next, batch.next_offset)

    def _continue_at_start(self, partition: TopicPartition, position: _Position) -> None:
        start = self._cluster.offsets({partition: EARLIEST})[partition]
        if start <= position.next:
            raise ClientError(f"{partition} ends before offset {position.next}: give other offsets with --offset.")
        if self._on_gap is not None:
            self._on_gap(partition, position.next, start)
        position.next = start
        if position.stop is not None and start >= position.stop:
            self.drop(partition)
        else:
            self._unassigned.add(partition)


def _question(wanted: Mapping[TopicPartition, int], *, committed: bool) -> bytes:
    fields = struct.pack(">iiiibii", -1, MAX_WAIT_MS, 1, MAX_BYTES, committed, *_NO_SESSION)
    topics = topic_array(
        wanted,
        lambda partition: struct.pack(
            ">iiqqi", partition.partition, _NO_EPOCH, wanted[partition], -1, PARTITION_MAX_BYTES
        ),
    )
    return fields + topics + struct.pack(">i", 0)


def _fetched(fields: Fields) -> list[FetchedPartition]:
    _throttle_ms, error, _session = fields.numbers("ihi")
    if error:
        raise refusal(error, "A fetch failed")
    found: list[FetchedPartition] = []

    def topic() -> None:
        name = fields.text()

        def partition() -> None:
            number, code, high, stable, start = fields.numbers("ihqqq")
            aborted = fields.array(lambda: fields.numbers("qq"))
            tp = TopicPartition(name, number)
            found.append(FetchedPartition(tp, code, high, stable, start, [(a, b) for a, b in aborted], fields.data()))

        fields.array(partition)

    fields.array(topic)
    return found


def _after(found: FetchedPartition, position: int) -> int:
    """The offset after the whole batches of a response."""
    for batch, _ in batches_in(found.data):
        position = max(position, batch.next_offset)
    return position


def _marker_type(data: memoryview, batch: BatchHeader, partition: TopicPartition) -> int:
    key = records_in(partition.topic, partition.partition, batch, data)[0].key
    return int.from_bytes((key or b"")[2:4], "big")
