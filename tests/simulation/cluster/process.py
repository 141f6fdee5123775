"""A process of a simulated node: the parts of the daemon, wired as in `broker/server.py`.

RULES    1. All events of a process go through `do`: they wait for the end of a pause, and are dropped after its end.
         2. Each process has clocks with their own origin and rate.
NOT HERE What survives the process (`machine.py`), sockets, coordinators, client requests (`clients.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import FetchSessions
from broker.handlers.records.list_offsets import ListOffsetsHandler
from broker.handlers.router import RequestContext
from broker.network.exchange import ConnectionInfo
from broker.network.peer import Response
from broker.node.disk_full_policy import DiskFullPolicy
from broker.node.key_index import KeyIndex
from broker.node.kraft_runtime import RuntimeDependencies
from broker.node.scheduled_tasks import ScheduledTasks
from broker.peers.alter_partition_manager import AlterPartitionManager
from broker.peers.assignments_manager import AssignmentsManager
from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.controller_channel import ControllerChannel
from broker.peers.controller_registration import ControllerRegistration
from broker.peers.quorum_config import load_quorum_config
from broker.peers.replica_fetchers import ReplicaFetcherManager
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.file_region import FileRegion, file_regions
from protocol.messages.produce_fetch import FetchRequest, ListOffsetsRequest
from protocol.messages.quorum import BrokerRegistrationRequest
from protocol.primitives import new_uuid
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller import LocalController
from replication.controller.decision_context import DecisionContext
from replication.cooperative_tasks import no_op
from replication.kraft_node import KRaftNode, KraftOptions
from replication.metadata.image import Endpoint, MetadataDelta, MetadataImage
from replication.metadata.image_records import stored_endpoints
from replication.metadata_log.formatting import FormatOptions, format_directories
from replication.metadata_log.kraft_replica import Dependencies
from replication.metadata_log.metadata_log_check import check_for_loss
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import ReplayedMetadata, read_metadata
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.metadata_log.node_identity import read_node_identity
from replication.partition.compactor import Compactor
from replication.partition.follower_log import FollowerLog
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.raft.voters import ListenerAddress
from replication.timer_queue import TimerQueue
from storage.config.log_config import log_config
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from tests.simulation.cluster.io_executor import SimulatedIoExecutor
from tests.simulation.held_lock import HeldLock
from tests.simulation.network import Reply
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import Simulation

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
DIRECTORY = "/d"
COMMIT_LOG_FILE_BYTES = (4096, 65536)
START_MS = 1_700_000_000_000
HOST = "sim"
CLIENTS_PORT, CONTROLLERS_PORT = 1000, 2000
FETCH_VERSION, OFFSETS_VERSION = 18, 11


Handler = Callable[["Process", Message, Reply], None]


class Failed(Exception):
    """The node reports that it cannot continue."""


class Process:
    """Everything that ends with the process."""

    def __init__(self, simulation: Simulation, config: BrokerConfig, disk: SimulatedDisk, number: int) -> None:
        """Recover from the disk."""
        self._simulation = simulation
        self.number = number
        self.config = config
        self.node_id = config.node_id
        self.disk = disk
        self.is_alive = True
        self.has_closed_logs = False
        self.paused_until_ms = 0
        random = simulation.random
        self._pace = random.choice((1.0, 1.0, 1.02, 0.97))
        self._origin_ms = random.randrange(1_000_000) - int(simulation.now_ms * self._pace)
        self.timers = TimerQueue()
        self.timers.on_earlier = self._arm
        self._armed_ms: int | None = None
        self._worker = SimulatedIoExecutor(disk, random, self.call_later, simulation.slowest_disk_ms)
        self._build()
        self._build_broker()

    # ------------------------------------------------------------ time
    def mono_ms(self) -> int:
        return self._origin_ms + int(self._simulation.now_ms * self._pace)

    def wall_ms(self) -> int:
        return START_MS + int(self._simulation.now_ms * self._pace)

    def do(self, act: Callable[[], object]) -> None:
        if not self.is_alive:
            return
        rest_ms = self.paused_until_ms - self._simulation.now_ms
        if rest_ms > 0:
            self._simulation.after(rest_ms, lambda: self.do(act))
            return
        self._simulation.run(self.node_id, act)
        self._simulation.touched(self.node_id)

    def call_later(self, delay_ms: int, act: Callable[[], object]) -> None:
        self._simulation.after(delay_ms, lambda: self.do(act))

    def _drain(self) -> None:
        self.purgatory.drain()

    def _soon(self, act: Callable[[], None]) -> None:
        self.call_later(0, act)

    def _arm(self) -> None:
        due_ms = self.timers.next_mono_ms()
        if due_ms is None:
            return
        now_ms = self._simulation.now_ms
        at_ms = now_ms + max(0, math.ceil((due_ms - self.mono_ms()) / self._pace))
        if self._armed_ms is None or at_ms < self._armed_ms:
            self._armed_ms = at_ms
            self.call_later(at_ms - now_ms, lambda: self._run_due(at_ms))

    def _run_due(self, at_ms: int) -> None:
        if self._armed_ms == at_ms:
            self._armed_ms = None
        self.timers.run_due(self.mono_ms())
        self._arm()

    # ------------------------------------------------------------ construction
    def _build(self) -> None:
        config, disk, random = self.config, self.disk, self._simulation.random
        identity = read_node_identity(disk, [DIRECTORY], node_id=self.node_id)
        found: ReplayedMetadata | None = None
        if identity is not None:
            found = read_metadata(disk, identity)
            check_for_loss(disk, identity, found)
        controller = ListenerAddress("CONTROLLER", HOST, CONTROLLERS_PORT + self.node_id)
        identity = format_directories(
            disk,
            [DIRECTORY],
            self.node_id,
            FormatOptions(CLUSTER_ID),
            identity=identity,
            controller=controller,
            random_bytes=random.randbytes,
            wall_ms=self.wall_ms(),
        )
        self.log_manager = LogManager(
            disk,
            identity.directory_ids,
            log_config({}, config.given),
            random_bytes=random.randbytes,
            new_lock=partial(HeldLock, disk),
        )
        self.log_manager.commit_logs.file_bytes = random.choice(COMMIT_LOG_FILE_BYTES)
        self.log_manager.load(lambda topic: _id_of(found, topic))
        for _ in self.log_manager.recover():
            pass
        places = load_quorum_config(config)
        start = open_metadata_log(
            disk,
            self.log_manager.engines.create,
            identity,
            self._worker,
            config.metadata_log_config(),
            found,
            places.static_voters,
            may_observe=True,
        )
        self.metadata_log = start.log
        start.log.on_failed = self._storage_failed
        self.incarnation_id = new_uuid(random.randbytes)
        endpoint = Endpoint(controller.listener, controller.host, controller.port, 0)
        node_specific = LocalController(self.incarnation_id, (endpoint,))
        self.node = node = KRaftNode(
            Dependencies(disk, self._worker, self.timers, self, random.randrange, self._ask_replica),
            identity,
            start,
            self._decision_context(start.image),
            node_specific,
            KraftOptions(config.quorum_times(), config.number("broker.session.timeout.ms")),
        )
        node.publisher.call_soon = node.log.call_soon = self._soon
        node.controller.on_failed = _fail
        self.publisher = node.publisher
        ask = self._ask_controller
        self.channel = ControllerChannel(self.node_id, node, node.publisher, ask, ask, self.timers, self)
        node.quorum.on_leader_changed = self._on_leader_changed
        self._registration = ControllerRegistration(self.node_id, node_specific, self.channel)

    def _decision_context(self, image: MetadataImage) -> DecisionContext:
        config, random = self.config, self._simulation.random
        return DecisionContext(
            image=image,
            node_id=config.node_id,
            static_configs=config.given,
            broker_configs=DynamicBrokerConfig(config),
            num_partitions=1,
            default_replication_factor=3,
            new_id=lambda: new_uuid(random.randbytes),
            random_below=random.randrange,
        )

    def _build_broker(self) -> None:
        config, clock = self.config, self
        self.purgatory = Purgatory(self.timers)
        self.purgatory.on_wake = lambda: self._soon(self._drain)
        self.replicas = ReplicaManager(
            self.log_manager,
            self._worker,
            self.purgatory,
            self.publisher.image,
            self.node_id,
            config.given,
            config.number("replica.lag.time.max.ms"),
        )
        self.replicas.on_directory_failed = lambda _, error: self._storage_failed(error)
        registration = BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.incarnation_id,
            listeners=stored_endpoints((Endpoint("PLAINTEXT", HOST, CLIENTS_PORT + self.node_id, 0),)),
            features=[],
            rack=None,
            log_dirs=[home.directory_id for home in self.log_manager.directories.values()],
            previous_broker_epoch=self.log_manager.previous_broker_epoch,
        )
        self.lifecycle = lifecycle = BrokerLifecycle(self.channel, registration, self.timers, clock, config)
        self._disk_full_policy = policy = DiskFullPolicy(self.node_id, DIRECTORY, self.publisher, [])
        self._worker.on_space_change = self._on_space_changed
        policy.on_metadata_log_full = self.node.quorum.resign
        policy.on_change = lifecycle.heartbeat_now
        lifecycle.has_space = policy.has_space
        lifecycle.on_fenced_for_full_disk = policy.set_fenced
        lifecycle.on_failed = _fail
        lifecycle.on_active = self._on_active
        self._directories = AssignmentsManager(
            self.channel, lifecycle, self.log_manager, self.node_id, self.timers, clock
        )
        self.replicas.on_isr_proposed = AlterPartitionManager(
            self.channel, lifecycle, self.node_id, self.timers, clock
        ).submit
        self._fetchers = ReplicaFetcherManager(
            self._soon,
            config,
            lifecycle,
            lambda: SimpleNamespace(send_request=self._ask_leader, close=no_op),
            FollowerLog(self.replicas, self._worker),
            self.timers,
            clock,
        )
        self._fetchers.resize(1)
        self.replicas.on_partition_changed = self._on_partition_changed
        numbers = itertools.count(1)
        authorizer = AllowAll()
        sessions = FetchSessions(self.purgatory, lambda: next(numbers))
        self._fetching = FetchHandler(FetchServices(self.replicas, sessions, self.purgatory, authorizer))
        self._offsets = ListOffsetsHandler(self.replicas, authorizer)
        self.publisher.on_image = self._on_image
        self.publisher.on_published = self._on_published
        loop: Any = SimpleNamespace(call_soon=self._soon)
        dependencies = RuntimeDependencies(loop, self.disk, self._worker, self.timers, clock)
        self._scheduled_tasks = ScheduledTasks(
            dependencies,
            config,
            self.replicas,
            self.publisher,
            MetadataSnapshots(self.disk, self._worker, self.metadata_log, config.snapshot_settings()),
            Compactor(self.replicas, [], config.cleaner_settings().resources, self.wall_ms),
            KeyIndex(dependencies, self.replicas, authorizer),
        )

    # ------------------------------------------------------------ lifecycle
    def start(self) -> None:
        """Start the quorum replica and register the broker."""
        self.node.start()
        self.lifecycle.register()

    def _on_active(self) -> None:
        self.publisher.start()
        self.replicas.rename_strays()
        self._directories.reconcile_now(self.replicas.partitions.values())
        self._scheduled_tasks.start([])

    def stop(self) -> None:
        """Stop after a controlled shutdown."""
        self.lifecycle.begin_controlled_shutdown().then(lambda _: self._soon(self._shut_down))

    def _shut_down(self) -> None:
        self._scheduled_tasks.stop()
        self._fetchers.close()
        self.node.quorum.resign()
        self._worker.finish()
        self.has_closed_logs = True
        self.metadata_log.close()
        self.log_manager.shutdown(self.lifecycle.epoch)
        self._simulation.ended(self.node_id)

    def fill_disk(self) -> None:
        """Let the disk be full."""
        self._worker.fill()

    def free_disk(self) -> None:
        """Let a full disk have space again."""
        self._worker.free()

    # ------------------------------------------------------------ callbacks
    def _on_space_changed(self, has_space: bool) -> None:
        self.replicas.on_space_changed(DIRECTORY, has_space)
        self._disk_full_policy.space_changed(DIRECTORY, has_space)

    def _on_image(self, image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        yield from self.replicas.apply(image, changes, self.mono_ms())
        partitions = (
            self.replicas.partitions.get((image.topics_by_id[topic_id].name, index))
            for topic_id, indexes in changes.partitions.items()
            for index in indexes
        )
        yield from self._directories.reconcile([partition for partition in partitions if partition is not None], image)

    def _on_published(self, image: MetadataImage) -> None:
        self._registration.image_published(image)
        self.lifecycle.image_published(image)

    def _on_partition_changed(self, partition: Partition) -> None:
        if self.replicas.partitions.get(partition.key) is partition:
            self._fetchers.follow(partition)
        else:
            self._fetchers.forget(partition)

    def _on_leader_changed(self, leader_id: int) -> None:
        self.channel.leader_changed(leader_id)
        if leader_id == self.node_id:
            self._simulation.on_quorum_leader(self.node_id)

    def _storage_failed(self, error: StorageError) -> None:
        raise Failed(f"error without an injected fault: {error}")

    # ------------------------------------------------------------ requests sent
    def _ask_replica(self, node_id: int, _: ListenerAddress | None, request: Message) -> Response:
        return self._ask_controller(node_id, request)

    def _ask_controller(self, node_id: int, request: Message) -> Response:
        waits_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        timeout_ms = self.config.number("controller.quorum.request.timeout.ms") + waits_ms
        return self._ask(node_id, request, timeout_ms, Process.ask_controller)

    def _ask_leader(self, broker_id: int, request: Message) -> Response:
        timeout_ms = self.config.number("replica.socket.timeout.ms")
        return self._ask(broker_id, request, timeout_ms, Process.ask_broker)

    def _ask(self, node_id: int, request: Message, timeout_ms: int, handler: Handler) -> Response:
        response: Response = Completion()

        def respond(message: Message | None) -> None:
            self.do(lambda: response.complete(message))

        self._simulation.ask(self.node_id, node_id, request, respond, timeout_ms, handler)
        return response

    # ------------------------------------------------------------ requests received
    def ask_controller(self, request: Message, reply: Reply) -> None:
        if isinstance(request, FetchRequest) or type(request).__module__.endswith(".raft"):
            response = self.node.quorum.handle_request(request)
        else:
            response = self.node.submit(request)
        response.then(lambda done: reply(done.result()))

    def ask_broker(self, request: Message, reply: Reply) -> None:
        answer: Any
        if isinstance(request, ListOffsetsRequest):
            answer = self._offsets.list_offsets(self._context(ApiKey.LIST_OFFSETS, OFFSETS_VERSION), request)
        else:
            assert isinstance(request, FetchRequest), f"unexpected request to a broker: {type(request).__name__}"
            answer = self._fetching.handle(self._context(ApiKey.FETCH, FETCH_VERSION), request)
        if isinstance(answer, Completion):
            answer.then(lambda late: reply(_in_memory(late.result())))
        else:
            reply(_in_memory(answer))

    def _context(self, key: int, version: int) -> RequestContext:
        connection = ConnectionInfo(1, "PLAINTEXT", (HOST, 1), (HOST, 2), "User:ANONYMOUS")
        return RequestContext(key, version, 1, "sim", connection, self.mono_ms(), self.wall_ms())


def _in_memory(answer: Any) -> Message:
    """The response with the bytes that sendfile would send."""
    for topic in getattr(answer, "responses", ()):
        for data in topic.partitions:
            if isinstance(data.records, list | tuple):
                data.records = b"".join(_bytes_of(region) for region in file_regions(data.records))
    assert isinstance(answer, Message)
    return answer


def _bytes_of(region: FileRegion) -> bytes:
    file: Any = region.file
    return bytes(file.pread(region.length, region.position))


def _fail(sentence: str) -> None:
    raise Failed(sentence)


def _id_of(found: ReplayedMetadata | None, topic: str) -> bytes | None:
    known = None if found is None else found.image.topics_by_name.get(topic)
    return None if known is None else known.topic_id
