"""A controller over a real metadata log in a temporary directory, with a worker that can be held back."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.router import ConnectionInfo, Pending, RequestContext
from broker.security.authorizer import AllowAll
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.quorum import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from protocol.schema import Message
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.controller import Controller, LocalController
from replication.controller.decision_context import DecisionContext
from replication.controller.periodic_tasks import TaskIntervals
from replication.io_executor import Begin, IoCallback, Run
from replication.kraft_node import Dependencies, KRaftNode
from replication.metadata.feature_levels import features_for
from replication.metadata.image import MetadataDelta, Endpoint, MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata.metadata_records import MetadataBatch, read_batches
from replication.metadata_log.formatting import (
    METADATA_DIRECTORY,
    ControllerEndpoint,
    NodeIdentity,
    format_directories,
    read_node_identity,
    new_uuid,
)
from replication.metadata_log.kraft_replica import ResponseCallback
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_log_open import OpenedMetadataLog, open_metadata_log
from replication.raft.quorum_state import QuorumTimes
from replication.raft.voters import ListenerAddress
from replication.timer_queue import TimerQueue
from storage.config.log_config import LogConfig
from storage.engine import Engine
from storage.io.disk import Disk, StorageError
from storage.segments.segment_engine import SegmentEngine

SESSION_MS = 9_000
NEVER = TaskIntervals(None, None, None)
WALL_MS = 1_795_252_933_743
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
CONTROLLER = ControllerEndpoint("CONTROLLER", "127.0.0.1", 27101)
ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 27100, 0),)
CLIENT = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 27100), ("127.0.0.1", 40000), "User:ANONYMOUS")
CONTROLLER_ENDPOINTS = (Endpoint("CONTROLLER", "127.0.0.1", 27101, 0),)


class HeldWorker:
    """Runs at once while open; while held, syncs wait until they are let through or made to fail, and so do writes."""

    def __init__(self) -> None:
        self.is_held = False
        self.holds_writes = False
        self.writes: deque[tuple[Run, IoCallback]] = deque()
        self.syncs: deque[tuple[Run, IoCallback]] = deque()
        self.synced = 0

    def write(self, directory: str, size: int, run: Run, done: IoCallback) -> None:
        self.writes.append((run, done))
        if not self.holds_writes:
            self.let_write()

    def read(self, directory: str, run: Run, done: IoCallback) -> None:
        raise AssertionError("the metadata log is open")

    def directory_op(self, directory: str, run: Run, done: IoCallback) -> None:
        raise AssertionError("the metadata log is made at the start")

    def background(self, directory: str, run: Run, done: IoCallback) -> None:
        raise AssertionError("nothing of the metadata log is in no hurry")

    def sync(self, directory: str, begin: Begin, done: IoCallback) -> None:
        self.syncs.append((begin(), done))
        if not self.is_held:
            self.let_through()

    def let_write(self) -> None:
        """Do the oldest write."""
        run, done = self.writes.popleft()
        try:
            run()
        except StorageError as error:
            done(error)
        else:
            done(None)

    def let_through(self, error: StorageError | None = None) -> None:
        """End the oldest sync."""
        run, done = self.syncs.popleft()
        self.synced += 1
        if error is None:
            run()
        done(error)


class WorldClock:
    """The clocks of a world."""

    def __init__(self, world: ControllerWorld) -> None:
        self._world = world

    def mono_ms(self) -> int:
        return self._world.mono_ms

    def wall_ms(self) -> int:
        return WALL_MS


def _nobody(peer: int, address: ListenerAddress | None, request: Message, answered: ResponseCallback) -> None:
    raise AssertionError("there is nobody to ask")


class ControllerWorld:
    """Node 1, alone."""

    def __init__(
        self,
        path: Path,
        *,
        seed: int = 1,
        disk: Disk | None = None,
        settings: dict[str, str] | None = None,
        intervals: TaskIntervals = NEVER,
    ) -> None:
        self.directory = str(path)
        self.disk = disk or Disk()
        self.worker = HeldWorker()
        self.dice = random.Random(seed)
        self.settings = settings or {}
        self.intervals = intervals
        self.images: list[tuple[MetadataImage, MetadataDelta]] = []
        self.identity = self.format()
        self.incarnation = b""
        self.topic_ids: deque[bytes] = deque()
        self.incarnations: deque[bytes] = deque()
        self.timers = TimerQueue()
        self.mono_ms = 1_000
        self.log: MetadataLog
        self.node: KRaftNode
        self.controller: Controller
        self.publisher: MetadataPublisher
        self.heartbeat_tracker: BrokerHeartbeatTracker

    def format(self) -> NodeIdentity:
        """Format the directory when it is not."""
        return format_directories(
            self.disk,
            [self.directory],
            node_id=1,
            identity=read_node_identity(self.disk, [self.directory], node_id=1),
            cluster_id=CLUSTER_ID,
            controller=CONTROLLER,
            random_bytes=self.dice.randbytes,
            wall_ms=WALL_MS,
        )

    def open(self) -> OpenedMetadataLog:
        """Open the log."""
        opened = open_metadata_log(self.disk, self.engine, self.identity, self.worker)
        self.log = opened.log
        return opened

    def adopt(self, log: bytes) -> ControllerWorld:
        """Have the metadata log of another directory, and be its only voter."""
        self.log_path.write_bytes(log)
        (voters,) = [m for b in self.batches() for m in b.messages if isinstance(m, stored_records.VotersRecord)]
        self.identity = self.identity._replace(metadata_directory_id=voters.voters[0].voter_directory_id)
        return self

    def engine(self, path: str, config: LogConfig) -> Engine:
        """Of the log."""
        return SegmentEngine(self.disk, path, config)

    def lead(self) -> ControllerWorld:
        """Open the log and lead it."""
        opened = self.open()
        fresh = new_uuid(random.Random(f"{self.log.next_offset}").randbytes)  # another one each time that it is opened
        self.incarnation = self.incarnations.popleft() if self.incarnations else fresh
        self.heartbeat_tracker = BrokerHeartbeatTracker(self.timers, SESSION_MS)
        self.heartbeat_tracker.on_session_expired = lambda broker: self.controller.fence_expired_broker(
            broker, wall_ms=WALL_MS
        )
        around = Dependencies(self.disk, self.worker, self.timers, WorldClock(self), self.dice.randrange, _nobody)
        own = LocalController(self.incarnation, CONTROLLER_ENDPOINTS)
        self.node = KRaftNode(
            around,
            self.identity,
            opened,
            self.context(),
            self.heartbeat_tracker,
            own,
            times=QuorumTimes(),
            intervals=self.intervals,
        )
        self.controller, self.publisher = self.node.controller, self.node.publisher
        self.publisher.on_image = self._follow
        self.node.start()
        return self

    def start(self, *, previous_epoch: int = -1) -> ControllerWorld:
        """Open the log, lead it, and have this node's broker be active."""
        self.lead()
        answer = self.register(self.registration(previous_epoch))
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        self.heartbeat(self.own_heartbeat())
        self.publisher.start()
        return self

    def registration(self, previous_epoch: int = -1) -> BrokerRegistrationRequest:
        """What this node's broker says when its process begins."""
        levels = features_for(self.image.features)
        return BrokerRegistrationRequest(
            broker_id=1,
            cluster_id=self.identity.cluster_id,
            incarnation_id=self.incarnation,
            listeners=[
                BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=0) for e in ENDPOINTS
            ],
            features=[
                BrokerFeature(name=n, min_supported_version=a, max_supported_version=z) for n, (a, z) in levels.items()
            ],
            rack=None,
            log_dirs=list(self.identity.directory_ids.values()),
            previous_broker_epoch=previous_epoch,
        )

    def own_heartbeat(self, **wanted: Any) -> BrokerHeartbeatRequest:
        """This node's broker is heard."""
        says = {"want_fence": False, "want_shut_down": False, "cordoned_log_dirs": [], **wanted}
        return BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=self.broker_epoch, current_metadata_offset=self.image.offset, **says
        )

    def stop_broker(self) -> None:
        """End this node's broker in peace."""
        self.heartbeat(self.own_heartbeat(want_shut_down=True))

    @property
    def broker_epoch(self) -> int:
        """The epoch of this node's broker."""
        return self.image.brokers[1].epoch

    def _follow(self, image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        self.images.append((image, changes))
        yield

    def context(self) -> DecisionContext:
        """What decisions may look at."""
        return DecisionContext(
            node_id=1,
            static_configs=self.settings,
            broker_configs=DynamicBrokerConfig(BrokerConfig(self.settings)),
            num_partitions=1,
            default_replication_factor=1,
            new_id=lambda: self.topic_ids.popleft() if self.topic_ids else new_uuid(self.dice.randbytes),
            random_below=self.dice.randrange,
        )

    def ask(self, request: Message) -> Any:
        """Submit a request that is answered at once."""
        replies: list[Any] = []
        self.controller.submit(request, wall_ms=WALL_MS, reply=replies.append)
        assert len(replies) == 1, "answered once, and at once"
        return replies[0]

    def ask_as_client(self, request: Message) -> Any:
        """Ask this node's broker, which asks its controller."""
        handlers = TopicHandlers(
            1,
            self.controller,
            lambda: self.image,
            AllowAll(),
            deletion_enabled=True,
            timers=self.timers,
            broker_config_validator=BrokerConfigValidator(1, DynamicBrokerConfig(BrokerConfig(self.settings))),
        )
        routes: dict[type[Message], Callable[[RequestContext, Any], Pending]] = {
            IncrementalAlterConfigsRequest: handlers.incremental_alter_configs,
            AlterConfigsRequest: handlers.alter_configs,
        }
        handle = routes.get(type(request))
        if handle is None:
            return self.ask(request)
        answers: list[Any] = []
        decoded = copy.deepcopy(request)  # the handler's own, as what comes over a wire is
        pending = handle(RequestContext(0, 0, 1, "c", CLIENT, self.mono_ms, WALL_MS), decoded)
        pending.deliver_to(answers.append, lambda reason: None)
        (answer,) = answers
        return answer

    def register(self, request: BrokerRegistrationRequest) -> Any:
        """Have another node's broker register."""
        replies: list[Any] = []
        self.controller.register_broker(request, wall_ms=WALL_MS, reply=replies.append)
        return replies[0]

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Any:
        """Have another node's broker be heard."""
        replies: list[Any] = []
        self.controller.heartbeat(request, wall_ms=WALL_MS, mono_ms=self.mono_ms, reply=replies.append)
        return replies[0]

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.mono_ms += milliseconds
        self.timers.run_due(self.mono_ms)

    @property
    def image(self) -> MetadataImage:
        """The published image."""
        return self.publisher.image

    @property
    def log_path(self) -> Path:
        """The first segment of the metadata log."""
        return Path(self.directory) / METADATA_DIRECTORY / "00000000000000000000.log"

    def batches(self) -> list[MetadataBatch]:
        """All that is in the log."""
        return read_batches(self.log_path.read_bytes())

    def records(self, since: int = 0) -> list[Message]:
        """Data records from an offset on."""
        return [m for b in self.batches() if b.base_offset >= since and not b.is_control for m in b.messages]


def partition_changes(records: list[Message]) -> list[stored_records.PartitionChangeRecord]:
    """Those among the records."""
    return [record for record in records if isinstance(record, stored_records.PartitionChangeRecord)]
