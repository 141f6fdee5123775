"""One process of a simulated node: the parts of a broker and controller, made and wired as `broker/server.py` does it.

RULES    1. What happens to it goes through `do`: not before a pause is over, and nothing once it has ended.
         2. Its clocks go at their own pace, from an origin of their own.
NOT HERE What outlives it (`machine.py`), sockets, coordinators; what clients say to it (`clients.py`).
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import BrokerRules
from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_sessions import FetchSessions
from broker.handlers.records.list_offsets import OffsetsHandler
from broker.handlers.router import ConnectionInfo, Pending, RequestContext
from broker.node.scheduled_tasks import Housekeeping
from broker.peers.alter_partition_manager import IsrRequests
from broker.peers.assignments_manager import DirectoryRequests
from broker.peers.broker_lifecycle import BrokerLife
from broker.peers.controller_channel import ControllerChannel
from broker.peers.controller_registration import ControllerRegistration
from broker.peers.quorum_config import quorum_places
from broker.peers.replica_fetchers import Fetchers
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.messages.produce_fetch import FetchRequest, ListOffsetsRequest
from protocol.records import FileRegion
from protocol.schema import Message
from replication.controller.brokers.broker_heartbeat_tracker import Sessions
from replication.controller.brokers.registration import Registration
from replication.controller.controller import OwnController
from replication.controller.decision_context import Environment
from replication.kraft_node import MetadataNode, World
from replication.metadata.image import Changes, Endpoint, MetadataImage
from replication.metadata_log.formatting import ControllerEndpoint, format_directories, identify, new_uuid
from replication.metadata_log.metadata_log_check import refuse_a_loss
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import Replayed, read_metadata
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.compactor import Compactor
from replication.partition.follower_log import Following
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.raft.voters import Address
from replication.timer_queue import Deadlines
from storage.config.log_config import log_config
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from tests.simulation.cluster.workers import SimulatedWorker
from tests.simulation.network import Answered, Reply
from tests.simulation.simulated_disk import SimulatedDisk

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
DIRECTORY = "/d"
START_MS = 1_700_000_000_000
HOST = "sim"
CLIENTS_PORT, CONTROLLERS_PORT = 1000, 2000
FETCH_VERSION, OFFSETS_VERSION = 18, 11


class Failed(Exception):
    """The node says that it cannot go on."""


class Around(Protocol):
    """What a process asks of the world around it."""

    random: Random
    slowest_disk_ms: int

    @property
    def now_ms(self) -> int:
        """The time."""

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""

    def ask_broker(self, source: int, target: int, request: Message, answered: Answered, timeout_ms: int) -> None:
        """Ask another node's broker."""

    def ask_controller(self, source: int, target: int, request: Message, answered: Answered, timeout_ms: int) -> None:
        """Ask another node's controller."""

    def touched(self, node_id: int) -> None:
        """Something has happened to a node."""

    def began_to_lead(self, node_id: int) -> None:
        """A node leads the quorum."""

    def ended(self, node_id: int) -> None:
        """A process has ended, as it was asked to."""

    def run(self, node_id: int, act: Callable[[], object]) -> None:
        """Have a process do something, and see it end amid it where its time has come."""


class Process:
    """Everything that dies with it."""

    def __init__(self, around: Around, config: BrokerConfig, disk: SimulatedDisk, number: int) -> None:
        """Read what the disk holds, as a start does."""
        self._around = around
        self.number = number
        self.config = config
        self.node_id = config.node_id
        self.disk = disk
        self.is_alive = True
        self.paused_until_ms = 0
        random = around.random
        self._pace = random.choice((1.0, 1.0, 1.02, 0.97))
        self._origin_ms = random.randrange(1_000_000) - int(around.now_ms * self._pace)
        self.deadlines = Deadlines()
        self.deadlines.on_earlier = self._arm
        self._armed_ms: int | None = None
        self._worker = SimulatedWorker(disk, random, self.later, around.slowest_disk_ms)
        self._build()
        self._build_broker()

    # ------------------------------------------------------------ time
    def mono_ms(self) -> int:
        """Rule 2."""
        return self._origin_ms + int(self._around.now_ms * self._pace)

    def wall_ms(self) -> int:
        """Rule 2."""
        return START_MS + int(self._around.now_ms * self._pace)

    def do(self, act: Callable[[], object]) -> None:
        """Rule 1."""
        if not self.is_alive:
            return
        rest_ms = self.paused_until_ms - self._around.now_ms
        if rest_ms > 0:
            self._around.after(rest_ms, lambda: self.do(act))
            return
        self._around.run(self.node_id, act)
        self._around.touched(self.node_id)

    def later(self, delay_ms: int, act: Callable[[], object]) -> None:
        """Do something of this process in some time."""
        self._around.after(delay_ms, lambda: self.do(act))

    def _soon(self, act: Callable[[], None]) -> None:
        self.later(0, act)

    def _arm(self) -> None:
        due_ms = self.deadlines.next_mono_ms()
        if due_ms is None:
            return
        now_ms = self._around.now_ms
        at_ms = now_ms + max(0, math.ceil((due_ms - self.mono_ms()) / self._pace))
        if self._armed_ms is None or at_ms < self._armed_ms:
            self._armed_ms = at_ms
            self.later(at_ms - now_ms, lambda: self._run_due(at_ms))

    def _run_due(self, at_ms: int) -> None:
        if self._armed_ms == at_ms:
            self._armed_ms = None
        self.deadlines.run_due(self.mono_ms())
        self._arm()

    # ------------------------------------------------------------ making it
    def _build(self) -> None:
        config, disk, random = self.config, self.disk, self._around.random
        identity = identify(disk, [DIRECTORY], node_id=self.node_id)
        found: Replayed | None = None
        if identity is not None:
            found = read_metadata(disk, identity)
            refuse_a_loss(disk, identity, found)
        controller = ControllerEndpoint("CONTROLLER", HOST, CONTROLLERS_PORT + self.node_id)
        identity = format_directories(
            disk,
            [DIRECTORY],
            node_id=self.node_id,
            identity=identity,
            cluster_id=CLUSTER_ID,
            controller=controller,
            is_standalone=False,
            random_bytes=random.randbytes,
            wall_ms=self.wall_ms(),
        )
        self.log_manager = LogManager(
            disk,
            identity.directory_ids,
            log_config({}, config.given),
            random_bytes=random.randbytes,
            new_lock=threading.Lock,
        )
        self.log_manager.load(lambda topic: _id_of(found, topic))
        for _ in self.log_manager.recover():
            pass
        places = quorum_places(config)
        start = open_metadata_log(
            disk,
            self.log_manager.engine_factory,
            identity,
            self._worker,
            config.metadata_log_config(),
            found,
            places.static_voters,
            may_observe=True,
        )
        self.metadata_log = start.log
        start.log.on_failed = self._storage_failed
        sessions = Sessions(self.deadlines, config.number("broker.session.timeout.ms"))
        sessions.on_silence = self._fell_silent
        self.incarnation_id = new_uuid(random.randbytes)
        endpoint = Endpoint(controller.listener, controller.host, controller.port, 0)
        own = OwnController(self.incarnation_id, (endpoint,))
        self.node = node = MetadataNode(
            World(disk, self._worker, self.deadlines, self, random.randrange, self._ask_replica),
            identity,
            start,
            self._environment(),
            sessions,
            own,
            times=config.quorum_times(),
        )
        node.publisher.soon = node.log.soon = self._soon
        node.controller.on_failed = _fail
        self.publisher = node.publisher
        self.channel = ControllerChannel(self.node_id, node, node.publisher, self._ask_controller, self.deadlines, self)
        node.quorum.on_leader = self._leader_changed
        self._registration = ControllerRegistration(self.node_id, own, self.channel, self)

    def _environment(self) -> Environment:
        config, random = self.config, self._around.random
        return Environment(
            node_id=config.node_id,
            settings=config.given,
            rules=BrokerRules(config),
            num_partitions=1,
            default_replication_factor=3,
            new_id=lambda: new_uuid(random.randbytes),
            random_below=random.randrange,
        )

    def _build_broker(self) -> None:
        config, clock = self.config, self
        self.purgatory = Purgatory(self.deadlines)
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
        registration = Registration(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.incarnation_id,
            endpoints=(Endpoint("PLAINTEXT", HOST, CLIENTS_PORT + self.node_id, 0),),
            directories=tuple(home.directory_id for home in self.log_manager.directories.values()),
            previous_epoch=self.log_manager.previous_broker_epoch,
        )
        interval_ms = config.number("broker.heartbeat.interval.ms")
        self.life = life = BrokerLife(self.channel, registration, self.deadlines, clock, interval_ms)
        life.on_failed = _fail
        life.on_active = self._begin
        self._directories = DirectoryRequests(self.channel, life, self.log_manager, self.node_id, clock)
        self.replicas.on_isr_wanted = IsrRequests(self.channel, life, self.node_id, self.deadlines, clock).want
        self._fetchers = Fetchers(
            self._soon,
            self.node_id,
            lambda: life.epoch,
            self._ask_leader,
            Following(self.replicas, self.log_manager, self._worker),
            config.fetch_settings(),
            self.deadlines,
            clock,
        )
        self.replicas.on_following = self._follow
        numbers = itertools.count(1)
        authorizer = AllowAll()
        sessions = FetchSessions(self.purgatory, lambda: next(numbers))
        self._fetching = FetchHandler(self.replicas, sessions, self.purgatory, authorizer)
        self._offsets = OffsetsHandler(self.replicas, authorizer)
        self.publisher.on_image = self._image_changed
        self.publisher.on_published = self._published
        self._housekeeping = Housekeeping(
            self._soon,
            config,
            self.log_manager,
            self.replicas,
            self.publisher,
            MetadataSnapshots(self.disk, self._worker, self.metadata_log, config.snapshot_settings()),
            Compactor(self.replicas, [], config.cleaner_settings().resources, self.wall_ms),
            self._worker,
            self.deadlines,
            clock,
        )

    # ------------------------------------------------------------ its life
    def start(self) -> None:
        """Take part in the quorum, and register."""
        self.node.start()
        self.life.register()

    def _begin(self) -> None:
        self.publisher.begin()
        self.replicas.set_strays_aside()
        for _ in self._directories.check(self.replicas.partitions.values(), self.publisher.image):
            pass
        self._housekeeping.start([])

    def stop(self) -> None:
        """End when nobody needs this broker any more."""
        self.life.end(lambda: self._soon(self._leave))

    def _leave(self) -> None:
        self._housekeeping.stop()
        self._fetchers.close()
        self.node.quorum.resign()
        self._worker.finish()
        self.metadata_log.close()
        self.log_manager.shutdown(self.life.epoch)
        self._around.ended(self.node_id)

    # ------------------------------------------------------------ news
    def _image_changed(self, image: MetadataImage, changes: Changes) -> Iterator[None]:
        yield from self.replicas.apply(image, changes, self.mono_ms())
        made = (
            self.replicas.partitions.get((image.topics_by_id[topic_id].name, index))
            for topic_id, indexes in changes.partitions.items()
            for index in indexes
        )
        yield from self._directories.check([partition for partition in made if partition is not None], image)

    def _published(self, image: MetadataImage) -> None:
        self._registration.image_published(image)
        self.life.image_published(image)

    def _follow(self, partition: Partition) -> None:
        if self.replicas.partitions.get(partition.key) is partition:
            self._fetchers.follow(partition)
        else:
            self._fetchers.forget(partition)

    def _leader_changed(self, leader_id: int) -> None:
        self.channel.leader_changed(leader_id)
        if leader_id == self.node_id:
            self._around.began_to_lead(self.node_id)

    def _fell_silent(self, broker_id: int) -> None:
        self.node.controller.fence_silent(broker_id, wall_ms=self.wall_ms())

    def _drain(self) -> None:
        self.purgatory.drain()

    def _storage_failed(self, error: StorageError) -> None:
        raise Failed(f"a healthy disk is said to have failed: {error}")

    # ------------------------------------------------------------ asking others
    def _ask_replica(self, node_id: int, _: Address | None, request: Message, answered: Answered) -> None:
        self._ask_controller(node_id, request, answered)

    def _ask_controller(self, node_id: int, request: Message, answered: Answered) -> None:
        waits_ms = request.max_wait_ms if isinstance(request, FetchRequest) else 0
        timeout_ms = self.config.number("controller.quorum.request.timeout.ms") + waits_ms
        self._around.ask_controller(self.node_id, node_id, request, self._answered(answered), timeout_ms)

    def _ask_leader(self, broker_id: int, request: Message, answered: Answered) -> None:
        timeout_ms = self.config.number("replica.socket.timeout.ms")
        self._around.ask_broker(self.node_id, broker_id, request, self._answered(answered), timeout_ms)

    def _answered(self, answered: Answered) -> Answered:
        return lambda message: self.do(lambda: answered(message))

    # ------------------------------------------------------------ being asked
    def ask_controller(self, request: Message, reply: Reply) -> None:
        """What arrives at its controller's listener."""
        if isinstance(request, FetchRequest) or type(request).__module__.endswith(".raft"):
            self.node.quorum.receive(request, reply)
        else:
            self.node.submit(request, wall_ms=self.wall_ms(), reply=reply)

    def ask_broker(self, request: Message, reply: Reply) -> None:
        """What arrives at its broker's listener."""
        answer: Any
        if isinstance(request, ListOffsetsRequest):
            answer = self._offsets.list_offsets(self._context(ApiKey.LIST_OFFSETS, OFFSETS_VERSION), request)
        else:
            assert isinstance(request, FetchRequest), f"nobody asks a broker for {type(request).__name__}"
            answer = self._fetching.handle(self._context(ApiKey.FETCH, FETCH_VERSION), request)
        if isinstance(answer, Pending):
            answer.deliver_to(lambda message: reply(_in_memory(message)), _fail)
        else:
            reply(_in_memory(answer))

    def _context(self, key: int, version: int) -> RequestContext:
        connection = ConnectionInfo(1, "PLAINTEXT", (HOST, 1), (HOST, 2), "User:ANONYMOUS")
        return RequestContext(key, version, 1, "sim", connection, self.mono_ms(), self.wall_ms())


def _in_memory(answer: Any) -> Message:
    """An answer with the bytes that sendfile would send."""
    for topic in getattr(answer, "responses", ()):
        for data in topic.partitions:
            if isinstance(data.records, list | tuple):
                data.records = b"".join(_bytes_of(region) for region in data.records)
    assert isinstance(answer, Message)
    return answer


def _bytes_of(region: FileRegion) -> bytes:
    file: Any = region.file
    return bytes(file.pread(region.length, region.position))


def _id_of(found: Replayed | None, topic: str) -> bytes | None:
    known = None if found is None else found.image.topics_by_name.get(topic)
    return None if known is None else known.topic_id


def _fail(sentence: str) -> None:
    raise Failed(sentence)
