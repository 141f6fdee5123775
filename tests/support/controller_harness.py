"""A controller with a real metadata log in a temporary directory, and an executor that can hold back work."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.router import RequestContext
from broker.network.exchange import ConnectionInfo
from broker.security.authorizer import AllowAll
from broker.security.node_tls import NodeTls
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_records
from protocol.messages.admin import AlterConfigsRequest, CreateTopicsRequest, IncrementalAlterConfigsRequest
from protocol.messages.quorum import AlterPartitionRequest, BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.primitives import new_uuid
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.controller import Controller, LocalController
from replication.controller.decision_context import DecisionContext
from replication.controller.periodic_tasks import TaskIntervals
from replication.io_executor import SUCCEEDED, Begin, IoResult, Run
from replication.kraft_node import KRaftNode, KraftOptions
from replication.metadata.feature_levels import SUPPORTED_FEATURES, features_for
from replication.metadata.image import Endpoint, MetadataDelta, MetadataImage, PartitionState
from replication.metadata.image_records import stored_endpoints, stored_features
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata.metadata_records import MetadataBatch, read_batches
from replication.metadata_log.formatting import FormatOptions, format_directories
from replication.metadata_log.kraft_replica import Dependencies
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_log_open import OpenedMetadataLog, open_metadata_log
from replication.metadata_log.node_identity import NodeIdentity, read_node_identity
from replication.raft.quorum_state import QuorumTimes
from replication.raft.voters import ListenerAddress
from replication.timer_queue import TimerQueue
from storage.config.log_config import LogConfig
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.engine import Engine
from storage.io.disk import Disk
from storage.segments.segment_engine import SegmentEngine
from tests.support.messages import message
from tests.support.replica_harness import HeldIoExecutor, HeldWork

SESSION_MS = 9_000
NEVER = TaskIntervals(None, None, None)
WALL_MS = 1_795_252_933_743
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
CONTROLLER = ListenerAddress("CONTROLLER", "127.0.0.1", 27101)
ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 27100, 0),)
CLIENT = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 27100), ("127.0.0.1", 40000), "User:ANONYMOUS")
CONTROLLER_ENDPOINTS = (Endpoint("CONTROLLER", "127.0.0.1", 27101, 0),)


class HeldExecutor(HeldIoExecutor):
    """Runs writes, flushes and reads at once, unless the test holds them."""

    is_held = holds_writes = False

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        self.writes.append(written := HeldWork(run))
        if not self.holds_writes:
            self.let_write()
        return written.result

    def sync(self, directory: str, begin: Begin) -> IoResult:
        synced = super().sync(directory, begin)
        if not self.is_held:
            self.let_sync()
        return synced

    def background(self, directory: str, run: Run) -> IoResult:
        raise AssertionError("the metadata log is open, exists since the startup, and submits no background work")

    directory_op = background


def registration(broker_id: int = 2, incarnation: bytes = b"I" * 16, **changes: Any) -> BrokerRegistrationRequest:
    """The registration of a broker with one log directory that supports all features."""
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": incarnation,
        "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9, "security_protocol": 0}],
        "features": stored_features(SUPPORTED_FEATURES),
        "rack": "r",
        "log_dirs": [b"%d" % broker_id * 16],
    }
    return message(BrokerRegistrationRequest, **{**fields, **changes})


def _no_peer(peer: int, address: ListenerAddress | None, request: Message) -> Completion[Message | None]:
    raise AssertionError("a single node sends no request")


class ControllerHarness:
    """Node 1, the only node."""

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
        self.worker = HeldExecutor()
        self.dice = random.Random(seed)
        self.settings = settings or {}
        self.intervals = intervals
        self.images: list[tuple[MetadataImage, MetadataDelta]] = []
        self.identity = self.format()
        self.incarnation = b""
        self.is_broker = True
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
        """Format the directory, if it is not formatted."""
        return format_directories(
            self.disk,
            [self.directory],
            1,
            FormatOptions(CLUSTER_ID, is_standalone=True),
            identity=read_node_identity(self.disk, [self.directory], node_id=1),
            controller=CONTROLLER,
            random_bytes=self.dice.randbytes,
            wall_ms=WALL_MS,
        )

    def open(self) -> OpenedMetadataLog:
        """Open the log."""
        opened = open_metadata_log(self.disk, self.engine, self.identity, self.worker)
        self.log = opened.log
        return opened

    def use_log(self, log: bytes) -> ControllerHarness:
        """Use the metadata log of another directory, and become its only voter."""
        self.log_path.write_bytes(log)
        (voters,) = [m for b in self.batches() for m in b.messages if isinstance(m, stored_records.VotersRecord)]
        self.identity = self.identity._replace(metadata_directory_id=voters.voters[0].voter_directory_id)
        return self

    def engine(self, path: str, config: LogConfig) -> Engine:
        """The engine of the log."""
        return SegmentEngine(self.disk, path, config)

    def lead(self) -> ControllerHarness:
        """Open the log and become the leader."""
        opened = self.open()
        fresh = new_uuid(random.Random(f"{self.log.next_offset}").randbytes)  # a new id for each start
        self.incarnation = self.incarnations.popleft() if self.incarnations else fresh
        clock: Any = SimpleNamespace(mono_ms=lambda: self.mono_ms, wall_ms=lambda: WALL_MS)
        dependencies = Dependencies(self.disk, self.worker, self.timers, clock, self.dice.randrange, _no_peer)
        local = LocalController(self.incarnation, CONTROLLER_ENDPOINTS, is_broker=self.is_broker)
        self.node = KRaftNode(
            dependencies,
            self.identity,
            opened,
            self.context(opened.image),
            local,
            KraftOptions(QuorumTimes(), SESSION_MS, intervals=self.intervals),
        )
        self.heartbeat_tracker = self.node.heartbeat_tracker
        self.controller, self.publisher = self.node.controller, self.node.publisher
        self.publisher.on_image = self._follow
        self.node.start()
        return self

    def start(self, *, previous_epoch: int = -1) -> ControllerHarness:
        """Open the log, become the leader, and register and unfence the local broker."""
        self.lead()
        answer = self.ask(self.registration(previous_epoch))
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        self.local_heartbeat()
        self.publisher.start()
        return self

    def restart(self, *, previous_epoch: int = -1) -> ControllerHarness:
        """Close the log and start a new process on the directory."""
        self.log.close()
        return ControllerHarness(Path(self.directory)).start(previous_epoch=previous_epoch)

    def registration(self, previous_epoch: int = -1) -> BrokerRegistrationRequest:
        """The registration of the local broker."""
        return registration(
            1,
            self.incarnation,
            listeners=stored_endpoints(ENDPOINTS),
            features=stored_features(features_for(self.image.features)),
            rack=None,
            log_dirs=list(self.identity.directory_ids.values()),
            previous_broker_epoch=previous_epoch,
        )

    def local_heartbeat(self, **wanted: Any) -> Any:
        """Send a heartbeat of the local broker."""
        fields = {"current_metadata_offset": self.image.offset, "cordoned_log_dirs": [], **wanted}
        return self.heartbeat(self.broker_epoch, 1, **fields)

    def heartbeat(self, epoch: int, broker_id: int = 2, **wanted: Any) -> Any:
        """Send a heartbeat, caught up and unfenced unless `wanted` overrides it."""
        fields = {"current_metadata_offset": 2**40, "want_fence": False, "want_shut_down": False, **wanted}
        return self.ask(BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, **fields))

    def activate_broker(self, broker_id: int = 2) -> int:
        """Register and unfence another broker; returns its epoch."""
        epoch: int = self.ask(registration(broker_id)).broker_epoch
        assert not self.heartbeat(epoch, broker_id).is_fenced
        return epoch

    def stop_broker(self) -> None:
        """Shut down the local broker in a controlled way."""
        self.local_heartbeat(want_shut_down=True)

    def create(self, *replicas: list[int]) -> bytes:
        """Create topic t with these replicas; returns its id."""
        assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]
        topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        (made,) = self.ask(message(CreateTopicsRequest, topics=[topic], timeout_ms=1)).topics
        assert made.error_code == ErrorCode.NONE, made
        return made.topic_id  # type: ignore[no-any-return]

    def partition(self, topic_id: bytes, index: int = 0) -> PartitionState:
        """The published state of a partition."""
        return self.image.topics_by_id[topic_id].partitions[index]

    def alter_partition(
        self, topic_id: bytes, broker_id: int, *isr: int, partition_epochs: Sequence[int] = (-1,)
    ) -> Any:
        """Request an ISR, as the leader of the first partitions; a partition epoch of -1 is the current one."""
        members = [{"broker_id": member, "broker_epoch": self.image.brokers[member].epoch} for member in isr]
        partitions = []
        for index, epoch in enumerate(partition_epochs):
            state = self.partition(topic_id, index)
            partition_epoch = state.partition_epoch if epoch < 0 else epoch
            wanted = {"partition_index": index, "leader_epoch": state.leader_epoch, "partition_epoch": partition_epoch}
            partitions.append({**wanted, "new_isr_with_epochs": members})
        topics = [{"topic_id": topic_id, "partitions": partitions}]
        broker_epoch = self.image.brokers[broker_id].epoch
        request = message(AlterPartitionRequest, broker_id=broker_id, broker_epoch=broker_epoch, topics=topics)
        return self.ask(request).topics[0].partitions

    @property
    def broker_epoch(self) -> int:
        """The epoch of the local broker."""
        return self.image.brokers[1].epoch

    def _follow(self, image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        self.images.append((image, changes))
        yield

    def context(self, image: MetadataImage | None = None) -> DecisionContext:
        """The inputs of decisions."""
        return DecisionContext(
            image=image or self.image,
            node_id=1,
            static_configs=self.settings,
            broker_configs=DynamicBrokerConfig(BrokerConfig(self.settings)),
            num_partitions=1,
            default_replication_factor=1,
            new_id=lambda: self.topic_ids.popleft() if self.topic_ids else new_uuid(self.dice.randbytes),
            random_below=self.dice.randrange,
        )

    def submit(self, request: Message) -> Completion[Any]:
        return self.controller.submit(request)

    def ask(self, request: Message) -> Any:
        """Submit a request that is answered at once."""
        return self.submit(request).result()

    def submit_through_broker(self, request: Message) -> Any:
        """Send a request to the local broker, which forwards it to its controller."""
        controller: Any = SimpleNamespace(submit=self.controller.submit, image=self.image)
        config = BrokerConfig(self.settings)
        validator = BrokerConfigValidator(config, NodeTls(config), _run_inline)
        handlers = TopicHandlers(controller, AllowAll(), self.timers, config, validator)
        routes: dict[type[Message], Callable[[RequestContext, Any], Completion[Any]]] = {
            IncrementalAlterConfigsRequest: handlers.incremental_alter_configs,
            AlterConfigsRequest: handlers.alter_configs,
        }
        handle = routes.get(type(request))
        if handle is None:
            return self.ask(request)
        decoded = copy.deepcopy(request)  # the handler may modify it, like a decoded request
        return handle(RequestContext(0, 0, 1, "c", CLIENT, self.mono_ms, WALL_MS), decoded).result()

    def wait(self, milliseconds: int) -> None:
        """Advance the time."""
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
        """All batches in the log."""
        return read_batches(self.log_path.read_bytes())

    def records(self, since: int = 0) -> list[Any]:
        """The data records from an offset on."""
        return [m for b in self.batches() if b.base_offset >= since and not b.is_control for m in b.messages]


def _run_inline(run: Run) -> IoResult:
    run()
    return SUCCEEDED
