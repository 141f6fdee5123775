"""Fetch: read the dirty partitions; respond when there are enough bytes, else wait and read again.

RULES    1. Immediate responses: max_wait_ms is 0, no partitions, min_bytes reached, any error, a diverging epoch, or a
            preferred read replica. Otherwise the request waits until a partition changes or max_wait_ms has passed.
         2. Only dirty partitions are read; earlier results of this fetch stay valid for the others.
         3. The first partition with records returns at least one whole batch, whatever the limits. Later ones
            use the remaining bytes, and return nothing while the open-file limit is reached
            (storage/io/file_handle_cache.py). Without remaining bytes an incremental fetch leaves partitions for the
            next request.
         4. An incremental response contains a partition only if it has records, an error, or new high watermark or log start
            offset; a full response contains all partitions.
         5. Records are file regions for sendfile, never bytes.
         6. A partition whose read would block on the disk is *blocked*: a thread loads the pages, then it is read again. An
            incremental response with records leaves blocked partitions for the next fetch; others wait for them, even after
            max_wait_ms, as Kafka's read would.
         7. The fast path answers one partition with records in memory, without messages; the response is the same, byte for
            byte. It returns None before any change for any other request: another layout, a new or final session epoch,
            other dirty partitions, an error of any kind, an aborted transaction, fewer bytes than min_bytes, or data outside
            the page cache (docs/decisions/0015-fast-path-for-single-partition-requests.md).
NOT HERE Sessions and dirty partitions (`fetch_sessions.py`), visibility of records (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.handlers.records.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchedPartition,
    FetchSession,
    FetchSessions,
)
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.records.metered_fetch import SentValues, charged_response
from broker.handlers.router import FastPath, RequestContext, Route
from broker.quotas.request_meter import running
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.framing import Part
from protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from protocol.single_partition_codec import FIRST_FETCH_VERSION, FetchLayout
from replication.completion import Completion
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import DivergingEpoch, Reader
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import DelayedOperation, Purgatory
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Isolation

CONSUMER: Final = -1
FUTURE_LOCAL_REPLICA: Final = -3
DEFAULT_MAX_BYTES: Final = 55 * 1024 * 1024
NEVER: Final = 1 << 40  # monotonic milliseconds
_FIRST_VERSION_WITH_RACK: Final = 11
_FIRST_VERSION_WITH_IDS: Final = 13
_FIRST_VERSION_WITH_REPLICA_STATE: Final = 15
_FIRST_VERSION_WITH_LEADER: Final = 16  # the field exists from 12 on; Kafka fills it from 16 on
_NO_RECORDS: Final = b""
_new_tuple = tuple.__new__
_LEADER_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_ERRORS_BEFORE_READ: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""Errors before the read; as in Kafka the list of aborted transactions is empty then, not null."""

SelectReplica = Callable[[str, int, int, str], "int | None"]
"""(topic, partition, offset, client rack) -> preferred read replica (KIP-392)."""


class _ReadResult(NamedTuple):
    """The result of one partition."""

    data: PartitionData
    size: int
    """Bytes of records."""
    has_more: bool
    """Whether the partition stays dirty."""


class FetchHandler:
    """Handles Fetch."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        purgatory: Purgatory,
        authorizer: Authorizer,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Return at most `max_bytes` (fetch.max.bytes) per response, except for a first batch."""
        self.replicas = replicas
        self.sessions = sessions
        self.purgatory = purgatory
        self.authorizer = authorizer
        self.max_bytes = max_bytes
        self.select_replica: SelectReplica | None = None
        """Set together with `sessions.sends_high_watermarks`."""
        self._consumers = {
            (isolation, leader_only): Reader(CONSUMER, isolation, leader_only)
            for isolation in (Isolation.HIGH_WATERMARK, Isolation.LAST_STABLE)
            for leader_only in (True, False)
        }

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.FETCH, 4, 18, self.handle, fast_path=self.fast_path)]

    def fast_path(self, version: int) -> FastPath | None:
        """The fast path of a version, if it has one."""
        return FetchFastPath(self, version).answer if version >= FIRST_FETCH_VERSION else None

    def handle(self, ctx: RequestContext, request: FetchRequest) -> FetchResponse | Completion[FetchResponse]:
        """Handle a Fetch, now or later."""
        reader = self._reader(ctx.api_version, request)
        if reader.is_follower:
            ctx.connection.metrics = ctx.metrics.of_follower()
        fetch_context = self.sessions.open(request, ctx.api_version, ctx.mono_ms, is_follower=reader.is_follower)
        if isinstance(fetch_context, ErrorCode):
            return FetchResponse(error_code=fetch_context, responses=[])
        fetch = (_Fetch if ctx.meter is None else _MeteredFetch)(self, ctx, request, reader, fetch_context)
        if isinstance(fetch_context.waiter, _Fetch):
            fetch_context.waiter.supersede()
        fetch.read_dirty(ctx.mono_ms)
        fetch_context.requested_mono_ms = ctx.mono_ms
        if request.max_wait_ms <= 0 or not fetch_context.partitions or fetch.is_enough:
            return fetch.answer() if fetch.is_complete else fetch.park_for_disk()
        return fetch.park(ctx.mono_ms + fetch.max_wait_ms(request.max_wait_ms))

    def topic_name(self, topic_id: bytes) -> str:
        """The name of a topic.

        Raises:
            KafkaError: the id is unknown.
        """
        topic = self.replicas.image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def authorize_consumer(self, ctx: RequestContext, topic: str, references: Callable[[], int] | None = None) -> None:
        """Require READ on a topic, of which a request names several partitions.

        Raises:
            KafkaError: the client may not read it.
        """
        if not self.authorizer.authorize(ctx, Operation.READ, Resource.TOPIC, topic, references=references):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def response_max_bytes(self, requested: int) -> int:
        """The limit of a response to a client that accepts `requested` bytes."""
        return min(requested, self.max_bytes)

    def consumer(self, isolation: Isolation, version: int) -> Reader:
        """The reader for consumers; only versions with a rack id may read from followers (KIP-392)."""
        return self._consumers[isolation, version < _FIRST_VERSION_WITH_RACK]

    def _reader(self, version: int, request: FetchRequest) -> Reader:
        """The reader of a request: replica id and isolation level."""
        broker_epoch = -1
        replica_id = request.replica_id
        if version >= _FIRST_VERSION_WITH_REPLICA_STATE and request.replica_state is not None:
            replica_id = request.replica_state.replica_id
            broker_epoch = request.replica_state.replica_epoch
        isolation = Isolation.LAST_STABLE if request.isolation_level else Isolation.HIGH_WATERMARK
        if replica_id == CONSUMER:
            return self.consumer(isolation, version)
        if replica_id >= 0:
            return Reader(replica_id, Isolation.LOG_END, leader_only=True, broker_epoch=broker_epoch)
        if replica_id == FUTURE_LOCAL_REPLICA:
            return Reader(replica_id, Isolation.LOG_END, leader_only=False)
        return Reader(replica_id, isolation, leader_only=False)


class _Fetch(DelayedOperation):
    """A Fetch request in progress."""

    __slots__ = (
        "_blocked", "_bytes", "_ctx", "_fetch_context", "_handler", "_has_timed_out", "_has_topic_ids", "_is_follower",
        "_is_new_session", "_max_bytes", "_may_replicate", "_min_bytes", "_must_respond", "_pending", "_rack",
        "_readable_topic", "_reader", "_results", "_select_replica", "_sends_high_watermarks", "_throttle_ms", "_unblocked",
    )  # fmt: skip

    def __init__(
        self,
        handler: FetchHandler,
        ctx: RequestContext,
        request: FetchRequest,
        reader: Reader,
        fetch_context: FetchContext,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._ctx = ctx
        self._reader = reader
        self._fetch_context = fetch_context
        self._max_bytes = handler.response_max_bytes(request.max_bytes)
        if ctx.meter is not None:
            ctx.meter.is_exempt = reader.is_follower
            self._max_bytes = min(self._max_bytes, ctx.meter.max_fetch_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._rack = request.rack_id
        may_select = reader.replica_id == CONSUMER and not reader.leader_only
        self._select_replica = handler.select_replica if may_select else None
        self._has_topic_ids = ctx.api_version >= _FIRST_VERSION_WITH_IDS
        self._is_new_session = request.session_epoch == 0
        self._is_follower = reader.is_follower
        self._sends_high_watermarks = (
            handler.select_replica is not None and self._is_follower and fetch_context.is_incremental
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
        self._may_replicate = self._is_follower and handler.authorizer.authorize(
            ctx, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME
        )

    @property
    def is_enough(self) -> bool:
        """Whether the response can be sent."""
        return self._bytes >= self._min_bytes or self._must_respond or self._has_timed_out

    @property
    def is_complete(self) -> bool:
        """Whether the response does not wait for blocked partitions (rule 6)."""
        return not self._blocked or (
            self._fetch_context.is_incremental and not self._is_new_session and (self._bytes > 0 or self._must_respond)
        )

    # ------------------------------------------------------------ reading
    def read_dirty(self, fetched_mono_ms: int | None) -> None:
        """Read the dirty partitions; `fetched_mono_ms` is the time of a follower's request, None when reading again."""
        self._read_dirty_once(fetched_mono_ms)
        while self._unblocked:  # a synchronous disk unblocks at once
            self._read_dirty_once(None)

    def _read_dirty_once(self, fetched_mono_ms: int | None) -> None:
        fetch_context, results = self._fetch_context, self._results
        is_partial = fetch_context.is_incremental and not self._is_new_session
        dirty = fetch_context.dirty
        unblocked, self._unblocked = self._unblocked, {}
        for partition in unblocked:
            dirty[partition] = None
        at_file_limit = self._handler.replicas.at_file_limit
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
            if at_file_limit and partition not in unblocked and (self._bytes or self._blocked or self._unblocked):
                max_bytes = None
            read_mono_ms = unblocked.get(partition, fetched_mono_ms) if unblocked else fetched_mono_ms
            result = self._read_partition(partition, max_bytes, read_mono_ms)
            if result is None:
                at_file_limit = self._handler.replicas.at_file_limit  # a lookup opens files
            else:
                results[partition] = result
                self._bytes += result.size

    def _read_partition(
        self, partition: FetchedPartition, remaining_bytes: int | None, fetched_mono_ms: int | None
    ) -> _ReadResult | None:
        """Read one partition, without records if `remaining_bytes` is None; None if it is blocked."""
        replicas, reader = self._handler.replicas, self._reader
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
                    selected = self._select_replica(topic, partition.index, partition.offset, self._rack)
                    if selected is not None:
                        remaining_bytes = None
            max_bytes = partition.max_bytes
            if remaining_bytes is None:
                max_bytes = 0
            elif remaining_bytes < max_bytes:
                max_bytes = remaining_bytes
            min_one_batch = not self._bytes and remaining_bytes is not None
            info = replicas.read(topic, partition.index, partition, max_bytes, reader, min_one_batch, fetched_mono_ms)
        except KafkaError as error:
            return _ReadResult(self._error_data(partition, error.code), 0, has_more=True)
        except DivergingEpoch as diverged:
            data = self._error_data(partition, ErrorCode.NONE)
            data.diverging_epoch = FetchEpochEndOffset(epoch=diverged.epoch, end_offset=diverged.end_offset)
            return _ReadResult(data, 0, has_more=True)
        if isinstance(info, DiskLookup):
            found = replicas.find(topic, partition.index)
            is_read = replicas.await_disk(found, info, lambda: self._on_unblocked(partition))
            (self._unblocked if is_read else self._blocked)[partition] = fetched_mono_ms
            return None
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
        return _new_tuple(_ReadResult, (data, info.size, has_more))

    def _resolve_topic_name(self, partition: FetchedPartition) -> str:
        name = self._handler.topic_name(partition.topic_id)
        if partition.topic is None:
            self._fetch_context.set_topic_name(partition, name)
        return name

    def _authorize_follower(self) -> None:
        """Require CLUSTER_ACTION."""
        if not self._may_replicate:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _authorize_consumer(self, topic: str, partition: FetchedPartition) -> None:
        count = partial(self._fetch_context.count_of_topic, partition)
        self._handler.authorize_consumer(self._ctx, topic, count)
        self._readable_topic = topic

    def _is_throttled(self, topic: str, index: int) -> bool:
        """Whether a follower outside the ISR has exceeded its replication quota (KIP-73)."""
        replicas = self._handler.replicas
        wait_ms = replicas.leader_quota.wait_ms(topic, index, self._ctx.mono_ms)
        if not wait_ms or replicas.is_in_sync(topic, index, self._reader.replica_id):
            return False
        self._throttle_ms = min(self._throttle_ms, wait_ms)
        return True

    def _error_data(self, partition: FetchedPartition, code: ErrorCode) -> PartitionData:
        self._must_respond = True
        self._handler.replicas.counts.known(partition.topic).failed_reads += code != ErrorCode.NONE
        data = PartitionData(partition_index=partition.index, error_code=code, high_watermark=-1, records=_NO_RECORDS)
        if code in _ERRORS_BEFORE_READ:
            data.aborted_transactions = []
        elif code in _LEADER_ERRORS and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            assert partition.topic is not None
            data.current_leader = current_leader(self._handler.replicas.image, partition.topic, partition.index)
        return data

    # ------------------------------------------------------------ waiting
    def _on_unblocked(self, partition: FetchedPartition) -> None:
        """The disk read has finished: read the partition again at once, since its result is kept for this call only."""
        if partition in self._blocked:  # else this request has completed, or `read_dirty` continues
            self._unblocked[partition] = self._blocked.pop(partition)
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
        self._handler.purgatory.park(self, (), deadline_mono_ms)
        self._pending = Completion(self._on_cancel)
        return self._pending

    def try_complete(self) -> bool:
        """Read the changed partitions, unless disk reads have already found enough; complete if there is enough."""
        if not (self.is_enough and self.is_complete):
            self.read_dirty(None)
        fetch_context = self._fetch_context
        is_over = isinstance(fetch_context, FetchSession) and fetch_context.is_closed
        if not is_over and not (self.is_enough and self.is_complete):
            return False
        self._finish(self.answer())
        return True

    def expire(self) -> None:
        """The wait is over: complete with what was read, after blocked partitions (rule 6)."""
        self.read_dirty(None)
        self._has_timed_out = True
        if self.is_complete:
            self._finish(self.answer())
        else:
            self._handler.purgatory.park(self, (), NEVER)

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
            self._handler.sessions.remove(self._fetch_context.session_id)

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
        fetch_context, results, replicas = self._fetch_context, self._results, self._handler.replicas
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
        for partition, (data, size, _) in selected:
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
        """Whether the response contains the partition (rule 4); stores the sent values."""
        data = read.data
        if data.error_code or data.diverging_epoch is not None:
            partition.sent_high_watermark = -1  # send it again after the error
            return True
        has_changed = (
            read.size > 0
            or partition.sent_high_watermark != data.high_watermark
            or partition.sent_log_start_offset != data.log_start_offset
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


class _MeteredFetch(_Fetch):
    """A Fetch of a client with quotas."""

    __slots__ = ()

    def _read_dirty_once(self, fetched_mono_ms: int | None) -> None:
        with running(self._ctx.meter):
            super()._read_dirty_once(fetched_mono_ms)

    def answer(self) -> FetchResponse:
        """The response, or an empty one if the client must wait."""
        sent = [SentValues(part, part.sent_high_watermark, part.sent_log_start_offset) for part in self._results]
        response = super().answer()
        new_sessions = self._handler.sessions if self._is_new_session else None
        counts = self._handler.replicas.counts
        return charged_response(self._ctx, self._fetch_context, response, sent, new_sessions, counts)


class FetchFastPath:
    """The fast path of one version (rule 7)."""

    __slots__ = ("_committed", "_handler", "_layout", "_uncommitted")

    def __init__(self, handler: FetchHandler, version: int) -> None:
        self._handler = handler
        self._layout = FetchLayout(version)
        self._uncommitted = handler.consumer(Isolation.HIGH_WATERMARK, version)
        self._committed = handler.consumer(Isolation.LAST_STABLE, version)

    def answer(self, ctx: RequestContext, frame: bytearray, position: int) -> list[Part] | None:
        """The response to the request at `position`, or None."""
        fetch = self._layout.decode_request(frame, position)
        if fetch is None:
            return None
        handler, topic, index, offset = self._handler, fetch.topic, fetch.partition, fetch.fetch_offset
        in_session = None
        try:
            if fetch.topic_id:
                topic = handler.topic_name(fetch.topic_id)
            partition = handler.replicas.partitions.get((topic, index))
            if partition is None or partition.log.offsets.high_watermark <= offset:
                return None  # not on this broker, or the fetch has to wait
            if fetch.session_id != NO_SESSION or fetch.session_epoch != FINAL_EPOCH:
                in_session = handler.sessions.find_only_dirty(fetch)
                if in_session is None:
                    return None
            if handler.select_replica is not None:
                return None
            handler.authorize_consumer(ctx, topic)
            info = handler.replicas.read(
                topic,
                index,
                FetchPosition(offset, fetch.current_leader_epoch, fetch.last_fetched_epoch),
                min(handler.response_max_bytes(fetch.max_bytes), fetch.partition_max_bytes),
                self._committed if fetch.isolation_level else self._uncommitted,
                min_one_batch=True,
            )
        except (KafkaError, DivergingEpoch):
            return None
        if isinstance(info, DiskLookup) or info.aborted or not info.size or info.size < fetch.min_bytes:
            return None
        partition.counts.bytes_out += info.size
        if in_session is not None:
            handler.sessions.answer_single(in_session, fetch, info, ctx.mono_ms)
        return self._layout.encode_response(
            ctx.correlation_id,
            fetch,
            info.high_watermark,
            info.last_stable_offset,
            info.log_start_offset,
            info.size,
            info.regions,
            has_empty_list=info.aborted is not None,
        )
