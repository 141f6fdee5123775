"""Fetch: look at what is asked, answer when there is enough, else wait and look again (seeds.md F1-F11; design D7).

RULES    1. Answered at once: no wait wanted, nothing asked, min_bytes there, any error, a diverging epoch, another
            replica to read from. Else the request is parked until one of its partitions moves or its time is over.
         2. A look goes to dirty partitions only; what was found of the others earlier in this fetch still holds.
         3. The first partition with records gives at least one whole batch, whatever the limits; those after
            it keep to what is left, and give nothing while as many files are open as may be
            (storage/io/file_handle_cache.py). Without room left, an incremental fetch leaves partitions for the next one.
         4. An incremental answer names a partition only when it has records, an error, or bounds that the client was
            not told yet; a full one names all that were asked.
         5. Records are regions of files, never bytes.
         6. A partition where a look would wait for the disk is *cold*: a thread does what there is to do, and then it is
            looked at again. An incremental answer with records leaves cold partitions for the next fetch; any other
            waits for them, also beyond the time that the client would wait for records, as Apache Kafka's would.
NOT HERE Sessions and their dirty sets (`fetch_sessions.py`), who may see how much (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.handlers.records.fetch_sessions import FetchedPartition, FetchSession, FetchSessions, Watchlist
from broker.handlers.records.leaders import current_leader, node_endpoints
from broker.handlers.router import Pending, RequestContext, Route, Shortcuts
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from replication.partition.partition import Diverged, Reader
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory, Waiter
from storage.io.would_block import WouldBlock
from storage.log.log import Isolation, ReadInfo

CONSUMER: Final = -1
FUTURE_LOCAL_REPLICA: Final = -3
DEFAULT_MAX_BYTES: Final = 55 * 1024 * 1024
NEVER: Final = 1 << 40  # milliseconds since the machine started
_FIRST_VERSION_WITH_RACK: Final = 11
_FIRST_VERSION_WITH_IDS: Final = 13
_FIRST_VERSION_WITH_REPLICA_STATE: Final = 15
_FIRST_VERSION_WITH_LEADER: Final = 16  # the field exists from 12 on; Kafka fills it from here
_NOTHING: Final = b""
_ABOUT_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_BEFORE_READING: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""Errors of a partition that nobody looked into; its list of aborted transactions is empty, not null, as in Kafka."""

_Found = tuple[PartitionData, int, bool]
"""What a look found: the partition's part of the answer, bytes of records, and whether to look there next time."""

SelectReplica = Callable[[str, int, int, str], "int | None"]
"""Topic, index, offset, the client's rack: another broker that the consumer should read from (KIP-392)."""


class FetchHandler:
    """Answers Fetch requests."""

    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessions,
        purgatory: Purgatory,
        authorizer: Authorizer,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Never give more than `max_bytes` (fetch.max.bytes) in one answer, a first batch excepted."""
        self.replicas = replicas
        self.sessions = sessions
        self.purgatory = purgatory
        self.authorizer = authorizer
        self.max_bytes = max_bytes
        self.select_replica: SelectReplica | None = None
        """Set together with `sessions.tells_watermarks`."""
        self._consumers = {
            (isolation, leader_only): Reader(CONSUMER, isolation, leader_only)
            for isolation in (Isolation.HIGH_WATERMARK, Isolation.LAST_STABLE)
            for leader_only in (True, False)
        }

    def handle(self, ctx: RequestContext, request: FetchRequest) -> FetchResponse | Pending:
        """Answer one Fetch, now or later."""
        reader = self._reader(ctx.api_version, request)
        watchlist = self.sessions.open(request, ctx.api_version, ctx.mono_ms, is_follower=reader.is_follower)
        if isinstance(watchlist, ErrorCode):
            return FetchResponse(error_code=watchlist, responses=[])
        fetch = _Fetch(self, ctx, request, reader, watchlist)
        if isinstance(watchlist.waiter, _Fetch):
            watchlist.waiter.give_way()
        fetch.look(ctx.mono_ms)
        watchlist.asked_mono_ms = ctx.mono_ms
        if request.max_wait_ms <= 0 or not watchlist.partitions or fetch.is_enough:
            return fetch.answer() if fetch.is_complete else fetch.park_for_the_disk()
        return fetch.park(ctx.mono_ms + fetch.patience_ms(request.max_wait_ms))

    def consumer(self, isolation: Isolation, version: int) -> Reader:
        """Any consumer; only one that could tell its rack may read from a follower (KIP-392)."""
        return self._consumers[isolation, version < _FIRST_VERSION_WITH_RACK]

    def _reader(self, version: int, request: FetchRequest) -> Reader:
        """Who asks (seeds.md F1), and up to where it may see (F2)."""
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


class _Fetch(Waiter):
    """One request in work, from its first look to its answer."""

    __slots__ = (
        "_bytes", "_cold", "_ctx", "_found", "_handler", "_held_back_ms", "_is_late", "_is_new_session", "_max_bytes",
        "_may_replicate", "_min_bytes", "_must_answer", "_pending", "_rack", "_reader", "_thawed", "_watchlist",
    )  # fmt: skip

    def __init__(
        self, handler: FetchHandler, ctx: RequestContext, request: FetchRequest, reader: Reader, watchlist: Watchlist
    ) -> None:
        super().__init__()
        self._handler = handler
        self._ctx = ctx
        self._reader = reader
        self._watchlist = watchlist
        self._max_bytes = min(request.max_bytes, handler.max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._rack = request.rack_id
        self._is_new_session = request.session_epoch == 0
        self._found: dict[FetchedPartition, _Found] = {}
        self._bytes = 0
        self._cold: dict[FetchedPartition, int | None] = {}  # with the time of the look that found it cold
        self._thawed: dict[FetchedPartition, int | None] = {}  # to be looked at again, as of that time
        self._is_late = False
        self._must_answer = False
        self._held_back_ms = NEVER
        """A follower that is throttled may have its records after so long."""
        self._pending: Pending | None = None
        self._may_replicate = not reader.is_follower or handler.authorizer.authorize(
            ctx.principal, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME
        )

    @property
    def is_enough(self) -> bool:
        """Whether what was found is an answer."""
        return self._bytes >= self._min_bytes or self._must_answer or self._is_late

    @property
    def is_complete(self) -> bool:
        """Whether nothing cold is missing in an answer (rule 6)."""
        if not self._cold:
            return True
        return self._watchlist.is_incremental and not self._is_new_session and (self._bytes > 0 or self._must_answer)

    @property
    def _is_crowded(self) -> bool:
        """Whether what was found must do: no more files are to be opened for this answer (rule 3)."""
        return bool(self._bytes or self._cold or self._thawed) and self._handler.replicas.is_crowded

    # ------------------------------------------------------------ looking
    def look(self, fetched_mono_ms: int | None) -> None:
        """Look at the dirty partitions; `fetched_mono_ms` is when a follower asked, None when this is another look."""
        self._look_once(fetched_mono_ms)
        while self._thawed:  # at once, where the disk is the caller's own affair
            self._look_once(None)

    def _look_once(self, fetched_mono_ms: int | None) -> None:
        watchlist, found = self._watchlist, self._found
        is_partial = watchlist.is_incremental and not self._is_new_session
        dirty = watchlist.dirty
        thawed, self._thawed = self._thawed, {}
        for partition in thawed:
            dirty[partition] = None
        for partition in list(dirty):
            before = found.pop(partition, None)
            if before is not None:
                self._bytes -= before[1]
            room = self._max_bytes - self._bytes
            if room <= 0 and is_partial and self._bytes and not self._reader.is_follower:
                break  # what a follower asks for is what it has, which others wait to hear
            del dirty[partition]
            if partition in self._cold:
                continue
            wants_records = partition in thawed or not self._is_crowded
            look = self._look_at(partition, room if wants_records else None, thawed.get(partition, fetched_mono_ms))
            if look is not None:
                found[partition] = look
                self._bytes += look[1]

    def _look_at(self, partition: FetchedPartition, room: int | None, fetched_mono_ms: int | None) -> _Found | None:
        """What there is, without records where `room` is None; None where the disk must be asked first."""
        replicas, reader = self._handler.replicas, self._reader
        try:
            topic = partition.topic
            if self._ctx.api_version >= _FIRST_VERSION_WITH_IDS:
                topic = self._name(partition)
            assert topic is not None
            self._authorize(topic)
            selected = self._select_replica(topic, partition)
            if selected is not None or self._is_held_back(topic, partition.index):
                room = None
            info = replicas.read(
                topic,
                partition.index,
                partition,
                min(room or 0, partition.max_bytes),
                reader,
                min_one_batch=self._bytes == 0 and room is not None,
                fetched_mono_ms=fetched_mono_ms,
            )
        except WouldBlock as blocked:
            assert topic is not None
            self._cold[partition] = fetched_mono_ms
            replicas.await_disk(replicas.find(topic, partition.index), blocked, lambda: self._warmed(partition))
            return None
        except KafkaError as error:
            return self._refusal(partition, error.code), 0, True
        except Diverged as diverged:
            data = self._refusal(partition, ErrorCode.NONE)
            data.diverging_epoch = FetchEpochEndOffset(epoch=diverged.epoch, end_offset=diverged.end_offset)
            return data, 0, True
        data = PartitionData(
            partition_index=partition.index,
            error_code=0,
            high_watermark=info.high_watermark,
            last_stable_offset=info.last_stable_offset,
            log_start_offset=info.log_start_offset,
            records=info.regions or _NOTHING,
        )
        if info.aborted is not None:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in info.aborted
            ]
        if selected is not None:
            data.preferred_read_replica = selected
            self._must_answer = True
        elif self._tells_watermarks and partition.told_high_watermark != info.high_watermark:
            self._must_answer = True
        return data, info.size, partition.offset < _bound(info, reader.isolation)

    def _name(self, partition: FetchedPartition) -> str:
        topic = self._handler.replicas.image.topics_by_id.get(partition.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if partition.topic is None:
            self._watchlist.name(partition, topic.name)
        return topic.name

    def _authorize(self, topic: str) -> None:
        """Refuse who may not read here (seeds.md F1)."""
        if self._reader.is_follower:
            is_allowed = self._may_replicate
        else:
            is_allowed = self._handler.authorizer.authorize(
                self._ctx.connection.principal, Operation.READ, Resource.TOPIC, topic
            )
        if not is_allowed:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    @property
    def _tells_watermarks(self) -> bool:
        """Whether consumers may read from who asks, as far as it knows the high watermark: it is told at once."""
        is_asked_elsewhere = self._handler.select_replica is not None
        return is_asked_elsewhere and self._reader.is_follower and self._watchlist.is_incremental

    def _is_held_back(self, topic: str, index: int) -> bool:
        """Whether a follower that is not in sync has had more than its throttle allows (KIP-73)."""
        replicas, reader = self._handler.replicas, self._reader
        if not reader.is_follower:
            return False
        wait_ms = replicas.leader_throttle.wait_ms(topic, index, self._ctx.mono_ms)
        if not wait_ms or replicas.is_in_sync(topic, index, reader.replica_id):
            return False
        self._held_back_ms = min(self._held_back_ms, wait_ms)
        return True

    def _select_replica(self, topic: str, partition: FetchedPartition) -> int | None:
        select = self._handler.select_replica
        if select is None or self._reader.replica_id != CONSUMER or self._reader.leader_only:
            return None
        return select(topic, partition.index, partition.offset, self._rack)

    def _refusal(self, partition: FetchedPartition, code: ErrorCode) -> PartitionData:
        self._must_answer = True
        data = PartitionData(partition_index=partition.index, error_code=code, high_watermark=-1, records=_NOTHING)
        if code in _BEFORE_READING:
            data.aborted_transactions = []
        elif code in _ABOUT_LEADER and self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER:
            assert partition.topic is not None
            data.current_leader = current_leader(self._handler.replicas.image, partition.topic, partition.index)
        return data

    # ------------------------------------------------------------ waiting
    def _warmed(self, partition: FetchedPartition) -> None:
        """The disk has answered: look again."""
        if partition in self._cold:  # else this request is over
            self._thawed[partition] = self._cold.pop(partition)
            self.wake()

    def patience_ms(self, max_wait_ms: int) -> int:
        """How long the reader waits for records; one that was held back asks again when it may have some."""
        return min(max_wait_ms, self._held_back_ms)

    def park_for_the_disk(self) -> Pending:
        """Wait for what is cold and for nothing else."""
        self._is_late = True
        return self.park(NEVER)

    def park(self, deadline_mono_ms: int) -> Pending:
        """Wait for movement; nothing can have moved since the look, for nobody else ran."""
        watchlist = self._watchlist
        watchlist.waiter = self
        if not watchlist.is_incremental:
            watchlist.watch_all()
        self._handler.purgatory.park(self, (), deadline_mono_ms)
        self._pending = Pending(self._cancelled)
        return self._pending

    def try_complete(self) -> bool:
        """Look again at what moved."""
        self.look(None)
        watchlist = self._watchlist
        is_over = isinstance(watchlist, FetchSession) and watchlist.is_closed
        if not is_over and not (self.is_enough and self.is_complete):
            return False
        self._finish(self.answer())
        return True

    def expire(self) -> None:
        """The wait for records is over: answer with what there is, or what the disk will say (rule 6)."""
        self.look(None)
        self._is_late = True
        if self.is_complete:
            self._finish(self.answer())
        else:
            self._handler.purgatory.park(self, (), NEVER)

    def give_way(self) -> None:
        """Another request of the session has come, so nobody waits for this answer."""
        self.cancel()
        self._keep_dirty()
        self._finish(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[]))

    def _cancelled(self) -> None:
        """The connection is gone; a session may be resumed over another one, unless nobody knows of it yet."""
        self.cancel()
        self._stop_watching()
        self._keep_dirty()
        self._pending = None
        if self._is_new_session:
            self._handler.sessions.remove(self._watchlist.session_id)

    def _finish(self, answer: FetchResponse) -> None:
        self._stop_watching()
        pending, self._pending = self._pending, None  # else they would keep each other, and the files of what was found
        assert pending is not None
        pending.complete(answer)

    def _stop_watching(self) -> None:
        self._watchlist.waiter = None
        if not self._watchlist.is_incremental:
            self._watchlist.unwatch_all()

    # ------------------------------------------------------------ answering
    def answer(self) -> FetchResponse:
        """What was found, and in a session: remember what the client knows now."""
        watchlist, found = self._watchlist, self._found
        chosen: Iterable[FetchedPartition]
        if not watchlist.is_incremental:
            chosen = watchlist.partitions.values()
        else:
            looked_at = watchlist.partitions.values() if self._is_new_session else found
            chosen = [
                partition
                for partition in looked_at
                if partition in found and self._tell(partition, *found[partition]) | self._is_new_session
            ]
            self._keep_dirty()
        topics: list[FetchableTopicResponse] = []
        last: FetchedPartition | None = None
        for partition in chosen:
            data, size, _ = found[partition]
            if size and self._reader.is_follower and partition.topic is not None:
                self._handler.replicas.leader_throttle.took(partition.topic, partition.index, size, self._ctx.mono_ms)
            if last is None or partition.topic_id != last.topic_id or partition.topic != last.topic:
                topics.append(
                    FetchableTopicResponse(topic=partition.topic or "", topic_id=partition.topic_id, partitions=[data])
                )
                last = partition
            else:
                topics[-1].partitions.append(data)
        response = FetchResponse(session_id=watchlist.session_id, responses=topics)
        is_told_endpoints = self._ctx.api_version >= _FIRST_VERSION_WITH_LEADER and not self._reader.is_follower
        if self._must_answer and is_told_endpoints:
            leaders = (data.current_leader for data, _, _ in found.values() if data.current_leader is not None)
            listener = self._ctx.connection.listener_name
            response.node_endpoints = node_endpoints(self._handler.replicas.image, leaders, listener)
        return response

    def _tell(self, partition: FetchedPartition, data: PartitionData, size: int, _has_more: bool) -> bool:  # noqa: FBT001
        """Whether the client must be told (rule 4); remembers that it was."""
        if data.error_code or data.diverging_epoch is not None:
            partition.told_high_watermark = -1  # so that it is told again when the error is gone
            return True
        is_news = (
            size > 0
            or partition.told_high_watermark != data.high_watermark
            or partition.told_log_start_offset != data.log_start_offset
            or data.preferred_read_replica >= 0
        )
        partition.tell(data.high_watermark, data.log_start_offset)
        return is_news

    def _keep_dirty(self) -> None:
        """Look again next time where there is more: first where there was no room, last where something was given."""
        watchlist = self._watchlist
        self._cold |= self._thawed
        served: list[FetchedPartition] = []
        starved: list[FetchedPartition] = [*self._cold]
        self._cold.clear()
        self._thawed.clear()
        for partition, (data, size, has_more) in self._found.items():
            if has_more:
                (served if size or data.error_code else starved).append(partition)
        if starved:
            watchlist.dirty = {**dict.fromkeys(starved), **watchlist.dirty}
        for partition in served:
            watchlist.dirty[partition] = None


def _bound(info: ReadInfo, isolation: Isolation) -> int:
    """Up to where the reader may see."""
    if isolation is Isolation.HIGH_WATERMARK:
        return info.high_watermark
    return info.log_end_offset if isolation is Isolation.LOG_END else info.last_stable_offset


def routes(handler: FetchHandler, shortcut: Shortcuts | None = None) -> list[Route]:
    """The rows of the API table."""
    return [Route(ApiKey.FETCH, 4, 18, handler.handle, shortcut=shortcut)]
