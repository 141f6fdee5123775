"""Coordinators without a broker: handlers over shards, fake logs and a fake clock; and the same API over sockets.

RULES    1. A harness handles requests of named actors. The actor's name is its client id and the prefix of its member ids.
         2. Requests and responses are encoded and decoded in their version, so a harness sees what a client sees.
         3. Time advances on request only; in a harness with sockets it is real.
NOT HERE The language of scenarios (`tests/scenarios/run.py`).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.coordinators.factory import group_settings, transaction_settings
from broker.coordinators.group_config import GroupConfigManager, GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.group_counts import GroupCounts
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.coordinators.transactions.remote_verification import RemoteVerification
from broker.coordinators.transactions.transaction import TopicPartition
from broker.coordinators.transactions.transaction_coordinator import (
    TRANSACTIONS_TOPIC,
    Marker,
    TransactionCoordinator,
    TransactionSettings,
    WrittenMarkers,
)
from broker.coordinators.transactions.transaction_verification import TransactionVerification
from broker.handlers.groups.classic_groups import ClassicGroupHandlers
from broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from broker.handlers.groups.find_coordinator import GROUP, TRANSACTION, FindCoordinatorHandler
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from broker.handlers.router import RequestContext, Router
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.network.exchange import ConnectionInfo
from broker.peers.endpoints import AdvertisedEndpoints
from broker.security.authorizer import ANONYMOUS, AllowAll, Authorizer
from protocol.api import APIS, response_header_version
from protocol.codec import decode, encode
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from protocol.messages.groups import DescribeGroupsRequest
from protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from protocol.messages.quorum import AllocateProducerIdsResponse
from protocol.messages.transactions import DescribeTransactionsRequest
from protocol.records import headers, patch
from protocol.schema import Message
from replication.completion import Completion, completed, failed
from replication.controller.controller_client import Client
from replication.metadata.image import BrokerImage, Endpoint, MetadataDelta, MetadataImage, PartitionState, TopicImage
from replication.timer_queue import TimerQueue
from storage.io.disk_lookup import DiskLookup
from tests.support.group_requests import consumer_heartbeat, init_request
from tests.support.raw_client import RawClient
from tests.support.waiting import until

NODE = 1
_FRAME_HEAD = 8  # length, correlation id
START_WALL_MS = 1_700_000_000_000
TRANSACTIONS_PARTITIONS = 5


def no_other_broker(_broker_id: int, request: Message) -> Completion[Message | None]:
    """The requests that this broker would send to others."""
    raise AssertionError(f"there is no other broker for {request}")


class FakeClock:
    """A clock that runs due timers when it is advanced."""

    def __init__(self) -> None:
        self.now_mono_ms = 1_000
        self.timers = TimerQueue()

    def mono_ms(self) -> int:
        """Monotonic milliseconds."""
        return self.now_mono_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return START_WALL_MS + self.now_mono_ms

    def advance(self, ms: int) -> None:
        """Advance the time, timer by timer."""
        end = self.now_mono_ms + ms
        while (due := self.timers.next_mono_ms()) is not None and due <= end:
            self.now_mono_ms = max(self.now_mono_ms, due)
            self.timers.run_due(self.now_mono_ms)
        self.now_mono_ms = end


class FakeLog:
    """A partition in memory; it can fail appends and hold commits."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.max_batch_bytes = 1_048_588
        self.refusal: ErrorCode | None = None
        self.is_holding = False
        self.held: list[Completion[None]] = []

    def offset_range(self) -> tuple[int, int]:
        """Log start offset and log end offset."""
        return 0, self.end_offset

    def await_disk(self, lookup: DiskLookup, then: Callable[[], None]) -> None:
        """Read at once."""
        lookup.run()
        lookup.finish()
        then()

    def append(self, batch: bytearray) -> Completion[None]:
        """Append a batch."""
        if self.refusal is not None:
            return failed(KafkaError(self.refusal))
        self.store(batch)
        if not self.is_holding:
            return completed(None)
        self.held.append(Completion())
        return self.held[-1]

    def store(self, batch: bytearray) -> None:
        """Write a batch at the end."""
        patch(batch, 0, self.end_offset, 0)
        self.batches.append(bytes(batch))
        self.end_offset = headers(batch)[0][1].next_offset

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Complete all held commits."""
        held, self.held = self.held, []
        for appended in held:
            if error is ErrorCode.NONE:
                appended.complete(None)
            else:
                appended.fail(KafkaError(error))

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Batches from the one that contains the offset."""
        found = b""
        for batch in self.batches:
            if headers(batch)[0][1].next_offset > offset and (not found or len(found) + len(batch) <= max_bytes):
                found += batch
        return found


def topic_id_of(name: str, generation: int = 0) -> bytes:
    """A topic id that shows its topic when printed."""
    return f"{name}.{generation}".encode().ljust(16, b".")[:16]


class ImageHolder:
    """A metadata image of one broker, to which topics can be added."""

    def __init__(self) -> None:
        self.image = MetadataImage("cluster")
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0)
        self.image.features["group.version"] = 1
        self.image.brokers[NODE] = BrokerImage(NODE, 1, bytes(16), (endpoint,), {}, None, False, False, ())
        self._made = 0

    def add_topic(self, name: str, partitions: int, epoch: int = 0) -> MetadataDelta:
        """Create a topic led by this broker."""
        states = {index: PartitionState((NODE,), (NODE,), NODE, epoch, 0) for index in range(partitions)}
        topic = TopicImage(name, topic_id_of(name, self._made), states)
        self._made += 1
        self.image.topics_by_name = {**self.image.topics_by_name, name: topic}
        self.image.topics_by_id = {**self.image.topics_by_id, topic.topic_id: topic}
        changes = MetadataDelta()
        changes.partitions[topic.topic_id] = set(states)
        return changes

    def remove_topic(self, name: str) -> MetadataDelta:
        """Delete a topic."""
        topic = self.image.topics_by_name[name]
        self.image.topics_by_name = {key: one for key, one in self.image.topics_by_name.items() if one is not topic}
        self.image.topics_by_id = {key: one for key, one in self.image.topics_by_id.items() if one is not topic}
        changes = MetadataDelta()
        changes.removed_topics[topic.topic_id] = topic
        return changes


class FakePartitions:
    """Partitions that store markers; markers for offsets go to the group coordinator."""

    def __init__(self, harness: LocalGroupHarness) -> None:
        self.partitions: dict[TopicPartition, Any] = {}
        """What `TransactionVerification` looks up: empty, so every batch is verified."""
        self.markers: list[tuple[Marker, TopicPartition]] = []
        self.refusals: dict[TopicPartition, ErrorCode] = {}
        self._world = harness

    def write(self, marker: Marker, partitions: Iterable[TopicPartition]) -> WrittenMarkers:
        """Like `TxnMarkerWriter.write`."""
        written: WrittenMarkers = {}
        for key in partitions:
            if key in self.refusals:
                written[key] = failed(KafkaError(self.refusals[key]))
                continue
            written[key] = completed(None)
            self.markers.append((marker, key))
            if key[0] != OFFSETS_TOPIC:
                continue
            batch = end_txn_marker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp_ms=self._world.clock.wall_ms(),
            )
            groups, is_commit = self._world.runtime, marker.is_commit
            written[key] = groups.end_transaction(key[1], batch, marker.producer_id, is_commit=is_commit)
        return written


class LocalGroupHarness:
    """The handlers of groups and transactions over real coordinators, without I/O."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        offsets_partitions: int = 5,
        transaction_settings: TransactionSettings | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.transaction_settings = transaction_settings or TransactionSettings()
        self.transaction_version = 2
        self.producer_ids = ProducerIdManager(self, NODE, lambda: 0)
        self._next_block = 0
        self.data = FakePartitions(self)
        self.transaction_logs = [FakeLog() for _ in range(TRANSACTIONS_PARTITIONS)]
        self.logs = [FakeLog() for _ in range(offsets_partitions)]
        self.holder = ImageHolder()
        self.group_config_manager = GroupConfigManager(self.settings.consumer, lambda: self.image)
        self._uuids = 0
        self._epoch = 0
        self.connection = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 5000), ANONYMOUS)
        self.answers: dict[str, list[Message]] = {}
        self.waiting: dict[str, Completion[Any]] = {}
        self.group_counts = GroupCounts()
        self._start()

    def _start(self) -> None:
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            lambda host: GroupCoordinator(
                host, self.settings, self.group_config_manager, self._uuid, lambda: self.image, self.group_counts
            ),
            lambda partition: self.logs[partition],
            self.clock.timers,
            self.clock,
        )
        self.transactions = CoordinatorRuntime(
            TRANSACTIONS_TOPIC,
            lambda host: TransactionCoordinator(
                host,
                self.transaction_settings,
                self.data,
                lambda: self.transaction_version,
                self.producer_ids.generate_producer_id,
            ),
            lambda partition: self.transaction_logs[partition],
            self.clock.timers,
            self.clock,
        )
        self._route(AllowAll())

    def _route(self, authorizer: Authorizer) -> None:
        def image() -> MetadataImage:
            return self.image

        remote = RemoteVerification(NODE, image, no_other_broker)
        verification = TransactionVerification(self.data, self.transactions, self.clock.timers, self.clock, remote)  # type: ignore[arg-type]
        topics = {
            GROUP: CreatableTopic(name=OFFSETS_TOPIC, num_partitions=len(self.logs), replication_factor=1),
            TRANSACTION: CreatableTopic(
                name=TRANSACTIONS_TOPIC, num_partitions=len(self.transaction_logs), replication_factor=1
            ),
        }
        addresses = AdvertisedEndpoints(NODE, frozenset())
        self.handlers = ClassicGroupHandlers(self.runtime, authorizer)
        self.offset_handlers = GroupOffsetsHandlers(self.runtime, verification, image, authorizer)
        transacting = TransactionHandlers(
            self.transactions, self.runtime, self.producer_ids, image, authorizer, len(self.logs)
        )
        self.router = Router(
            [
                *FindCoordinatorHandler(self, addresses, authorizer, topics).routes(),
                *self.handlers.routes(),
                *self.offset_handlers.routes(),
                *ConsumerGroupHandlers(self.runtime, image, authorizer).routes(),
                *transacting.routes(),
            ]
        )

    @property
    def image(self) -> MetadataImage:
        """The metadata image."""
        return self.holder.image

    def submit(self, request: Message, _client: Client | None = None) -> Completion[Any]:
        """The controller's API: creates topics, or returns a block of producer ids."""
        if isinstance(request, CreateTopicsRequest):
            for topic in request.topics:
                self.create_topic(topic.name, topic.num_partitions)
            results = [CreatableTopicResult(name=one.name, error_code=0, error_message=None) for one in request.topics]
            return completed(CreateTopicsResponse(topics=results))
        self._next_block += 1000
        block = AllocateProducerIdsResponse(error_code=0, producer_id_start=self._next_block, producer_id_len=1000)
        return completed(block)

    def authorize_by(self, authorizer: Authorizer) -> None:
        """Use another authorizer."""
        self._route(authorizer)

    def _uuid(self) -> str:
        self._uuids += 1
        return f"00000000-0000-0000-0000-{self._uuids:012}"

    # ---- actions of scenarios

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, as the controller would."""
        self._image_changed(self.holder.add_topic(name, partitions, self._epoch))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, as the controller would."""
        self._image_changed(self.holder.remove_topic(name))

    def _image_changed(self, changes: MetadataDelta) -> None:
        self.runtime.on_metadata_update(changes, self.holder.image, NODE)
        self.transactions.on_metadata_update(changes, self.holder.image, NODE)

    def topic_id(self, name: str) -> bytes:
        """The id of an existing topic."""
        return self.holder.image.topics_by_name[name].topic_id

    def send(self, actor: str, request: Message, version: int) -> None:
        """Send a request; `take` returns the response."""
        key, frame = type(request).API_KEY, bytearray(encode(request, version))
        clock = self.clock
        context = RequestContext(key, version, 1, actor, self.connection, clock.mono_ms(), clock.wall_ms())
        route = self.router.table[key]
        fast_path = None if route.fast_path is None else route.fast_path(version)
        answer: Any = None if fast_path is None else fast_path(context, frame, 0)
        if answer is None:
            answer = route.handler(context, decode(type(request), version, frame))
        if isinstance(answer, Completion):
            self.waiting[actor] = answer
            answer.then(lambda done: self._deliver(actor, key, version, done.result()))
        else:
            self._deliver(actor, key, version, answer)

    def _deliver(self, actor: str, key: int, version: int, answer: Message | list[Any] | None) -> None:
        """Decode a response, which is a message or, from a fast path, the parts of a frame."""
        self.waiting.pop(actor, None)
        if isinstance(answer, list):
            body = b"".join(answer)[_FRAME_HEAD + (response_header_version(key, version) >= 1) :]
        else:
            assert isinstance(answer, Message)
            body = encode(answer, version)
        self.answers.setdefault(actor, []).append(decode(APIS[key][1], version, body))

    def take(self, actor: str, patience_ms: int = 0) -> Message | None:
        """The next response to an actor, if it arrives within `patience_ms`; due timers run first."""
        clock = self.clock
        end = clock.now_mono_ms + patience_ms
        clock.advance(0)
        while not self.answers.get(actor):
            due = clock.timers.next_mono_ms()
            if due is None or due > end:
                clock.advance(end - clock.now_mono_ms)
                return None
            clock.advance(due - clock.now_mono_ms)
        return self.answers[actor].pop(0)

    def ask(self, request: Message, version: int, actor: str = "client") -> Any:
        """Send a request and return the response, which must be immediate."""
        self.send(actor, request, version)
        answer = self.take(actor)
        assert answer is not None, f"{actor} waits"
        return answer

    def advance(self, ms: int) -> None:
        """Advance the time."""
        self.clock.advance(ms)

    def restart(self) -> None:
        """Restart the broker: only the logs survive."""
        self.runtime.close()
        self.transactions.close()
        for log in self.logs + self.transaction_logs:
            log.held.clear()
        self.answers.clear()
        self.waiting.clear()
        self._epoch += 1
        self._start()
        for topic, logs in ((OFFSETS_TOPIC, self.logs), (TRANSACTIONS_TOPIC, self.transaction_logs)):
            if topic in self.holder.image.topics_by_name:
                self._image_changed(self.holder.add_topic(topic, len(logs), self._epoch))
        while self.runtime.is_loading or self.transactions.is_loading:
            self.clock.advance(1)

    def close(self) -> None:
        """Nothing to close."""


def local_world(settings: Mapping[str, Any]) -> LocalGroupHarness:
    """A harness in memory with Kafka's setting names and the internal topics."""
    config = BrokerConfig({name: str(value) for name, value in settings.items()})
    offsets_partitions = config.number("offsets.topic.num.partitions")
    harness = LocalGroupHarness(group_settings(config), offsets_partitions, transaction_settings(config))
    harness.create_topic(OFFSETS_TOPIC, offsets_partitions)
    harness.create_topic(TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS)
    return harness


class SocketGroupHarness:
    """The same API over sockets, for any broker, also Apache Kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connections: dict[str, _Connection] = {}
        self.topic_ids: dict[str, bytes] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic and wait until it is usable."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7, actor="admin")
        assert answer.topics[0].error_code in {0, ErrorCode.TOPIC_ALREADY_EXISTS}, answer
        requested = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

        def is_usable() -> bool:
            found = self.ask(requested, 12, actor="admin").topics[0]
            self.topic_ids[name] = found.topic_id
            return found.error_code == 0 and len(found.partitions) == partitions

        until(is_usable, f"the topic {name}", every_s=0.05)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; the coordinator notices a little later."""
        answer = self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5, actor="admin")
        assert answer.responses[0].error_code == 0, answer
        time.sleep(0.5)

    def topic_id(self, name: str) -> bytes:
        """The id of an existing topic."""
        return self.topic_ids[name]

    def send(self, actor: str, request: Message, version: int) -> None:
        """Send a request."""
        connection = self._connections.get(actor)
        if connection is None or connection.is_closed:
            connection = self._connections[actor] = _Connection(self._bootstrap, actor)
        connection.expect(request, version)

    def take(self, actor: str, patience_ms: int) -> Message | None:
        """The next response to an actor, if it arrives in time."""
        connection = self._connections.get(actor)
        return None if connection is None else connection.take(patience_ms / 1000)

    def ask(self, request: Message, version: int, actor: str = "client") -> Any:
        """Send a request and wait for the response."""
        self.send(actor, request, version)
        answer = self._connections[actor].take(30)
        assert answer is not None, f"{actor} waits"
        return answer

    def find_coordinator(self) -> None:
        """Wait until the internal topics exist and are loaded."""
        keys = [f"any-{number}" for number in range(100)]

        def codes(request: Message, version: int, results: str = "") -> set[int]:
            answer = self.ask(request, version, actor="admin")
            return {one.error_code for one in (getattr(answer, results) if results else [answer])}

        def coordinators(key_type: int) -> bool:
            requested = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            return codes(requested, 4, "coordinators") == {0}

        def consumer_groups() -> bool:
            # A JVM broker's first heartbeat takes longer than a scenario waits.
            join = consumer_heartbeat("any", 0, "any", owned={}, rebalance_timeout_ms=1000, subscribed_topic_names=[])
            return codes(join, 1) | codes(consumer_heartbeat("any", -1, "any"), 1) == {0}

        def transactions() -> bool:
            requested = DescribeTransactionsRequest(transactional_ids=keys)
            return codes(requested, 0, "transaction_states") == {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}

        for look, what in (
            (lambda: coordinators(GROUP), "coordinators of groups"),
            (lambda: codes(DescribeGroupsRequest(groups=keys), 5, "groups") == {0}, "groups that are loaded"),
            (consumer_groups, "consumer groups"),
            (lambda: coordinators(TRANSACTION), "coordinators of transactions"),
            (transactions, "transactions that are loaded"),
            (lambda: codes(init_request("any"), 4) == {0}, "producer ids"),
        ):
            until(look, what, within_s=60, every_s=0.1)

    def advance(self, ms: int) -> None:
        """Sleep."""
        time.sleep(ms / 1000)

    def restart(self) -> None:
        """Not possible for a shared broker."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


class _Connection(RawClient):
    """A connection of an actor, whose name is its client id."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        super().__init__(bootstrap, client_id=client_id)
        self._expected: list[tuple[Message, int]] = []
        self.is_closed = False

    def expect(self, request: Message, version: int) -> None:
        self.send(request, version)
        self._expected.append((request, version))

    def take(self, patience_s: float) -> Message | None:
        """The next response, if it arrives in time and the broker has not closed the connection."""
        if self.is_closed or not self._expected or not select.select([self.socket], [], [], patience_s)[0]:
            return None
        try:
            response: Message = self.receive(*self._expected.pop(0))
        except EOFError:
            self.is_closed = True
            return None
        return response
