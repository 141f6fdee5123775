"""A Fetch in progress: reads the dirty partitions; responds when there are enough bytes, else waits and reads again.

RULES    1. Only dirty partitions are read; earlier results of this fetch stay valid for the others.
         2. The first partition with records returns at least one whole batch, whatever the limits. Later ones
            use the remaining bytes, and return nothing while the open-file limit is reached
            (storage/io/file_handle_cache.py). Without remaining bytes an incremental fetch leaves partitions for the
            next request.
         3. An incremental response contains a partition only if it has records, an error, or new high watermark or log start
            offset; a full response contains all partitions.
         4. Records are file regions for sendfile, never bytes.
         5. A partition whose read would block on the disk is *blocked*: a thread loads the pages, then it is read again. An
            incremental response with records leaves blocked partitions for the next fetch; others wait for them, even after
            max_wait_ms, as Kafka's read would.
         6. A consumer that waits for more than a byte reads again when the partitions that were appended to may have enough.
NOT HERE When a Fetch waits (`fetch.py`), sessions and dirty partitions (`fetch_sessions.py`), visibility of records
         (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import FetchContext, FetchedPartition, FetchSession
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.records.read_mark import ReadMark, mark_of
from broker.handlers.router import RequestContext
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from replication.completion import Completion
from replication.metadata.acls import CLUSTER_NAME
from replication.partition.follower_progress import DivergingEpoch
from replication.partition.partition import CONSUMER, Partition, Reader
from replication.purgatory import DelayedOperation
from storage.io.disk_lookup import DiskLookup

NEVER: Final = 1 << 40  # monotonic milliseconds
_FIRST_VERSION_WITH_IDS: Final = 13
_FIRST_VERSION_WITH_LEADER: Final = 16  # the field exists from 12 on; Kafka fills it from 16 on
_NO_RECORDS: Final = b""
_MOST_COMPARED: Final = 32  # with more dirty partitions, comparing them costs as much as reading those of one wake
_new_tuple = tuple.__new__
_LEADER_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_ERRORS_BEFORE_READ: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""Errors before the read; as in Kafka the list of aborted transactions is empty then, not null."""


class _ReadResult(NamedTuple):
    """The result of one partition."""

    data: PartitionData
    size: int
    """Bytes of records."""
    has_more: bool
    """Whether the partition stays dirty."""
    mark: ReadMark | None = None
    """For rule 6."""


class DelayedFetch(DelayedOperation):
    """A Fetch request in progress (Kafka: DelayedFetch)."""

    __slots__ = (
        "_blocked",
        "_bytes",
        "_ctx",
        "_fetch_context",
        "_has_timed_out",
        "_has_topic_ids",
        "_is_follower",
        "_is_new_session",
        "_leaves_marks",
        "_max_bytes",
        "_may_replicate",
        "_min_bytes",
        "_must_respond",
        "_pending",
        "_rack",
        "_readable_topic",
        "_reader",
        "_results",
        "_select_replica",
        "_sends_high_watermarks",
        "_services",
        "_throttle_ms",
        "_unblocked",
    )  # fmt: skip

    def __init__(
        self,
        services: FetchServices,
        ctx: RequestContext,
        request: FetchRequest,
        reader: Reader,
        fetch_context: FetchContext,
    ) -> None:
        super().__init__()
        self._services = services
        self._ctx = ctx
        self._reader = reader
        self._fetch_context = fetch_context
        self._max_bytes = services.response_max_bytes(request.max_bytes)
        if ctx.meter is not None:
            ctx.meter.is_exempt = reader.is_follower
            self._max_bytes = min(self._max_bytes, ctx.meter.max_fetch_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._rack = request.rack_id
        may_select = reader.replica_id == CONSUMER and not reader.leader_only
        self._select_replica = services.select_replica if may_select else None
        self._leaves_marks = self._min_bytes > 1 and not reader.is_follower and self._select_replica is None
        self._has_topic_ids = ctx.api_version >= _FIRST_VERSION_WITH_IDS
        self._is_new_session = request.session_epoch == 0
        self._is_follower = reader.is_follower
        self._sends_high_watermarks = (
            services.select_replica is not None and self._is_follower and fetch_context.is_incremental
        )
        """Whether this follower must get a new high watermark at once: consumers may read from it."""
        self._results: dict[FetchedPartition, _ReadResult] = {}
        self._bytes = 0
        self._blocked: dict[FetchedPartition, int | None] = {}  # with the `fetched_mono_ms` of the blocked read
        self._unblocked: dict[FetchedPartition, int | None] = {}  # to read again, with that time
        self._readable_topic: str | None = None  # the topic that the client may read, of the last check
        self._has_timed_out = False
        self._must_respond = False
        self._throttle_ms = NEVER  # until a throttled follower may get records again
        self._pending: Completion[FetchResponse] | None = None
        self._may_replicate = self._is_follower and services.authorizer.authorize(
            ctx, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME
        )

    @property
    def is_enough(self) -> bool:
        """Whether the response can be sent."""
        return self._bytes >= self._min_bytes or self._must_respond or self._has_timed_out

    @property
    def is_complete(self) -> bool:
        """Whether the response does not wait for blocked partitions (rule 5)."""
        return not self._blocked or (
            self._fetch_context.is_incremental and not self._is_new_session and (self._bytes > 0 or self._must_respond)
        )

    # ------------------------------------------------------------ reading
    def read_dirty(self, fetched_mono_ms: int | None) -> None:
        """Read the dirty partitions; `fetched_mono_ms` is the time of a follower's request, None when reading again."""
        fetch_context, results, replicas = self._fetch_context, self._results, self._services.replicas
        is_partial = fetch_context.is_incremental and not self._is_new_session
        dirty = fetch_context.dirty
        unblocked, self._unblocked = self._unblocked, {}
        for partition in unblocked:
            dirty[partition] = None
        lookups: dict[Partition, DiskLookup] = {}
        blocked: dict[Partition, FetchedPartition] = {}
        at_file_limit = replicas.at_file_limit()
        is_repeated = bool(results)
        for partition in list(dirty):
            if is_repeated and (before := results.pop(partition, None)) is not None:
                self._bytes -= before.size
            remaining_bytes = self._max_bytes - self._bytes
            if remaining_bytes <= 0 and is_partial and self._bytes and not self._is_follower:
                break  # a follower's fetch offset acknowledges records, so it is always read
            del dirty[partition]
            if partition in self._blocked:
                continue
            max_bytes: int | None = remaining_bytes
            if at_file_limit and partition not in unblocked and (self._bytes or self._blocked):
                max_bytes = None
            read_mono_ms = unblocked.get(partition, fetched_mono_ms) if unblocked else fetched_mono_ms
            result = self._read_partition(partition, max_bytes, read_mono_ms)
            if isinstance(result, DiskLookup):
                assert partition.topic is not None
                replica = replicas.find(partition.topic, partition.index)
                lookups[replica], blocked[replica] = result, partition
                self._blocked[partition] = read_mono_ms
                at_file_limit = replicas.at_file_limit(len(lookups))  # they open files
            else:
                results[partition] = result
                self._bytes += result.size
        if lookups:
            replicas.await_disk_together(lookups, partial(self._on_unblocked, blocked))

    def _read_partition(
        self, partition: FetchedPartition, remaining_bytes: int | None, fetched_mono_ms: int | None
    ) -> _ReadResult | DiskLookup:
        """Read one partition, without records if `remaining_bytes` is None; the lookup to wait for if it is blocked."""
        replicas, reader = self._services.replicas, self._reader
        try:
            if self._is_follower:
                self._authorize_follower()
            topic = self._resolve_topic_name(partition) if self._has_topic_ids else partition.topic
            assert topic is not None
            selected = None
            if self._is_follower:
                if self._is_throttled(topic, partition.index):
                    remaining_bytes = None
            else:
                if topic != self._readable_topic:
                    self._authorize_consumer(topic, partition)
                if self._select_replica is not None:
                    listener = self._ctx.connection.listener_name
                    selected = self._select_replica(topic, partition.index, partition.offset, self._rack, listener)
                    if selected is not None:
                        remaining_bytes = None
            max_bytes = partition.max_bytes
            if remaining_bytes is None:
                max_bytes = 0
            elif remaining_bytes < max_bytes:
                max_bytes = remaining_bytes
            min_one_batch = not self._bytes and remaining_bytes is not None
            replica = replicas.find(topic, partition.index)
            info = replicas.read(replica, partition, max_bytes, reader, min_one_batch, fetched_mono_ms)
        except KafkaError as error:
            return _ReadResult(self._error_data(partition, error.code), 0, has_more=True)
        except DivergingEpoch as diverged:
            data = self._error_data(partition, ErrorCode.NONE)
            data.high_watermark, data.last_stable_offset, data.log_start_offset = diverged.offsets
            data.diverging_epoch = FetchEpochEndOffset(epoch=diverged.epoch, end_offset=diverged.end_offset)
            return _ReadResult(data, 0, has_more=True)
        if isinstance(info, DiskLookup):
            return info
        data = PartitionData(
            partition_index=partition.index,
            error_code=0,
            high_watermark=info.high_watermark,
            last_stable_offset=info.last_stable_offset,
            log_start_offset=info.log_start_offset,
            records=info.regions or _NO_RECORDS,
        )
        if info.aborted is not None:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in info.aborted
            ]
        if selected is not None:
            data.preferred_read_replica = selected
            self._must_respond = True
        elif self._sends_high_watermarks and partition.sent_high_watermark != info.high_watermark:
            self._must_respond = True
        has_more = partition.offset < info.limit(reader.isolation)
        mark = None
        if self._leaves_marks and remaining_bytes is not None:  # otherwise records may be withheld (rule 2)
            mark = mark_of(replica, info, reader.isolation)
        return _new_tuple(_ReadResult, (data, info.size, has_more, mark))

    def _resolve_topic_name(self, partition: FetchedPartition) -> str:
        name = self._services.topic_name(partition.topic_id, partition)
        if partition.topic is None:
            self._fetch_context.set_topic_name(partition, name)
        return name

    def _authorize_follower(self) -> None:
        """Require CLUSTER_ACTION."""
        if not self._may_replicate:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _authorize_consumer(self, topic: str, partition: FetchedPartition) -> None:
        count = partial(self._fetch_context.count_of_topic, partition)
        self._services.authorize_consumer(self._ctx, topic, count)
        self._readable_topic = topic

    def _is_throttled(self, topic: str, index: int) -> bool:
        """Whether a follower outside the ISR has exceeded its replication quota (KIP-73)."""
        replicas = self._services.replicas
        wait_ms = replicas.leader_quota.wait_ms(topic, index, self._ctx.mono_ms)
        if not wait_ms or replicas.is_in_sync(topic, index, self._reader.replica_id):
            return False
        self._throttle_ms = min(self._throttle_ms, wait_ms)
        return True

    def _error_data(self, partition: FetchedPartition, code: ErrorCode) -> PartitionData:
        self._must_respond = True
        self._services.replicas.counts.known(partition.topic).failed_reads += code != ErrorCode.NONE
        data = PartitionData(partition_index=partition.index, error_code=code, high_watermark=-1, records=_NO_RECORDS)
        if code in _ERRORS_BEFORE_READ:
            data.aborted_transactions = []
        elif code in _LEADER_ERRORS and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            assert partition.topic is not None
            data.current_leader = current_leader(self._services.replicas.image, partition.topic, partition.index)
        return data

    # ------------------------------------------------------------ waiting
    def _on_unblocked(self, blocked: Mapping[Partition, FetchedPartition], replicas: Sequence[Partition]) -> None:
        """Their disk reads have finished: read again at once, since the results are kept for this call only."""
        for replica in replicas:
            partition = blocked[replica]
            if partition in self._blocked:  # else this request has completed
                self._unblocked[partition] = self._blocked.pop(partition)
        if self._unblocked:
            self.read_dirty(None)
            self.wake()

    def max_wait_ms(self, max_wait_ms: int) -> int:
        """The longest wait; a throttled follower retries after its delay."""
        return min(max_wait_ms, self._throttle_ms)

    def park_for_disk(self) -> Completion[FetchResponse]:
        """Wait for blocked partitions only."""
        self._has_timed_out = True
        return self.park(NEVER)

    def park(self, deadline_mono_ms: int) -> Completion[FetchResponse]:
        """Wait for changes of the partitions. No change is missed: all of this runs on one thread."""
        fetch_context = self._fetch_context
        fetch_context.waiter = self
        if not fetch_context.is_incremental:
            fetch_context.watch_all()
        self._services.purgatory.park(self, (), deadline_mono_ms)
        self._pending = Completion(self._on_cancel)
        return self._pending

    def try_complete(self) -> bool:
        """Read the changed partitions, unless disk reads have already found enough; complete if there is enough."""
        if not (self.is_enough and self.is_complete) and self._may_have_enough():
            self.read_dirty(None)
        fetch_context = self._fetch_context
        is_over = isinstance(fetch_context, FetchSession) and fetch_context.is_closed
        if not is_over and not (self.is_enough and self.is_complete):
            return False
        self._finish(self.answer())
        return True

    def _may_have_enough(self) -> bool:
        """Whether the dirty partitions may return enough bytes, as far as is known without reading (rule 6)."""
        dirty, partitions = self._fetch_context.dirty, self._services.replicas.partitions
        if not self._leaves_marks or self._blocked or self._unblocked or len(dirty) > _MOST_COMPARED:
            return True
        most_bytes = self._bytes
        for partition in dirty:
            before, topic = self._results.get(partition), partition.topic
            if before is None or before.mark is None or topic is None:
                return True
            growth = before.mark.growth(partitions.get((topic, partition.index)), partition.offset)
            if growth is None:
                return True
            if before.size:
                growth = min(growth, max(partition.max_bytes - before.size, 0))
            most_bytes += growth
        return most_bytes >= self._min_bytes

    def expire(self) -> None:
        """The wait is over: complete with what was read, after blocked partitions (rule 5)."""
        self.read_dirty(None)
        self._has_timed_out = True
        if self.is_complete:
            self._finish(self.answer())
        else:
            self._services.purgatory.park(self, (), NEVER)

    def supersede(self) -> None:
        """A newer request of the session arrived; the client ignores this response."""
        self.cancel()
        self._restore_dirty()
        self._finish(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[]))

    def _on_cancel(self) -> None:
        """The connection is closed; a session continues over another one, unless its id was never sent."""
        self.cancel()
        self._stop_watching()
        self._restore_dirty()
        self._pending = None
        if self._is_new_session:
            self._services.sessions.remove(self._fetch_context.session_id)

    def _finish(self, answer: FetchResponse) -> None:
        self._stop_watching()
        pending, self._pending = self._pending, None  # break the reference cycle: it holds open files
        assert pending is not None
        pending.complete(answer)

    def _stop_watching(self) -> None:
        self._fetch_context.waiter = None
        if not self._fetch_context.is_incremental:
            self._fetch_context.unwatch_all()

    # ------------------------------------------------------------ responding
    def answer(self) -> FetchResponse:
        """The response; updates the values that the session has sent."""
        fetch_context, results, replicas = self._fetch_context, self._results, self._services.replicas
        partitions = fetch_context.partitions.values()
        selected: list[tuple[FetchedPartition, _ReadResult]]
        if not fetch_context.is_incremental:
            selected = [(partition, results[partition]) for partition in partitions]
        elif self._is_new_session:
            selected = [(partition, results[partition]) for partition in partitions if partition in results]
            for partition, read in selected:
                self._update_response(partition, read)
            self._restore_dirty()
        else:
            selected = [item for item in results.items() if self._update_response(*item)]
            self._restore_dirty()
        topics: list[FetchTopic[PartitionData]] = []
        last: FetchedPartition | None = None
        for partition, (data, size, _, _) in selected:
            if size and partition.topic is not None:
                replicas.counts.count_sent(partition.topic, size, is_follower=self._is_follower)
                if self._is_follower:
                    replicas.leader_quota.record(partition.topic, partition.index, size, self._ctx.mono_ms)
            if last is None or partition.topic_id != last.topic_id or partition.topic != last.topic:
                topics.append(FetchTopic(topic=partition.topic or "", topic_id=partition.topic_id, partitions=[data]))
                last = partition
            else:
                topics[-1].partitions.append(data)
        response = FetchResponse(session_id=fetch_context.session_id, responses=topics)
        has_endpoints = self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER and not self._is_follower
        if self._must_respond and has_endpoints:
            leaders = [read.data.current_leader for read in results.values() if read.data.current_leader is not None]
            listener = self._ctx.connection.listener_name
            response.node_endpoints = node_endpoints(replicas.image, leaders, listener)
        return response

    def _update_response(self, partition: FetchedPartition, read: _ReadResult) -> bool:
        """Whether the response contains the partition (rule 3); stores the sent values."""
        data = read.data
        if data.error_code or data.diverging_epoch is not None:
            partition.sent_high_watermark = -1  # send it again after the error, or after the truncation
            return True
        has_changed = (
            read.size > 0
            or partition.has_changed(data.high_watermark, data.log_start_offset)
            or data.preferred_read_replica >= 0
        )
        partition.sent_high_watermark = data.high_watermark
        partition.sent_log_start_offset = data.log_start_offset
        return has_changed

    def _restore_dirty(self) -> None:
        """Keep partitions dirty that have more: those cut by a limit first, those that returned records last."""
        fetch_context = self._fetch_context
        self._blocked |= self._unblocked
        served: list[FetchedPartition] = []
        starved: list[FetchedPartition] = [*self._blocked]
        self._blocked.clear()
        self._unblocked.clear()
        for partition, read in self._results.items():
            if read.has_more:
                (served if read.size or read.data.error_code else starved).append(partition)
        if starved:
            fetch_context.dirty = {**dict.fromkeys(starved), **fetch_context.dirty}
        for partition in served:
            fetch_context.dirty[partition] = None
