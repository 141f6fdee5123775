"""A node's part in the cluster's metadata: its replica of the log, its voice in the quorum, its controller, the images it sees.

NOT HERE What each of them does; sockets, threads and clocks, which are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    AddRaftVoterRequest,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    RemoveRaftVoterRequest,
)
from protocol.messages.quorum import BrokerHeartbeatRequest, BrokerRegistrationRequest
from protocol.schema import Message
from replication.controller.brokers.broker_heartbeat_tracker import Sessions
from replication.controller.controller import Controller, OwnController
from replication.controller.decision_context import Environment, KraftVersion
from replication.controller.periodic_tasks import DEFAULT_INTERVALS, Intervals, Recurring
from replication.io_executor import Run, Worker
from replication.metadata.feature_levels import KRAFT_VERSION, SUPPORTED_FEATURES
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import Publisher
from replication.metadata_log.formatting import METADATA_DIRECTORY, Identity
from replication.metadata_log.kraft_replica import Clock, Quorum, SendTo
from replication.metadata_log.metadata_loader import CommittedMetadata
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_log_open import MetadataStart
from replication.metadata_log.quorum_state_store import write_quorum_state
from replication.raft.describe_quorum import describe
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState
from replication.raft.replica_state import QuorumTimes
from replication.raft.rpc_messages import METADATA_TOPIC
from replication.raft.voters import Address, ReplicaKey, Voter
from replication.timer_queue import Deadlines
from storage.io.disk import Disk, StorageError


class World(NamedTuple):
    """What the node has around it."""

    disk: Disk
    worker: Worker
    deadlines: Deadlines
    clock: Clock
    random_below: Callable[[int], int]
    send: SendTo


class MetadataNode:
    """Made of what the directory held at the start; nothing happens before `start`."""

    def __init__(
        self,
        world: World,
        identity: Identity,
        start: MetadataStart,
        environment: Environment,
        sessions: Sessions,
        own: OwnController,
        *,
        times: QuorumTimes,
        bootstrap_servers: int = 0,
        joins: bool = False,
        intervals: Intervals = DEFAULT_INTERVALS,
    ) -> None:
        self._world = world
        self._path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
        self.log = log = start.log
        self.publisher = Publisher(start.image)
        committed = CommittedMetadata(log, self.publisher, is_in_transaction=start.is_in_transaction)
        kraft_version = KraftVersion(
            lambda: log.kraft_version.latest, lambda level: self.raft.upgrade(level, validate_only=True)
        )
        environment = environment._replace(kraft_version=kraft_version)
        recurring = Recurring(world.deadlines, world.clock.mono_ms, intervals)
        self.controller = Controller(
            log, self.publisher, committed, environment, sessions, world.clock, own, start.bootstrap, recurring
        )
        log.on_loaded = committed.loaded
        committed.leader = lambda: self.raft.leader_id
        self.raft = Raft(
            _own_voter(identity, own, log),
            identity.cluster_id,
            log,
            start.state,
            times=times,
            bootstrap_servers=bootstrap_servers,
            joins=joins,
            jitter=world.random_below,
            mono_ms=world.clock.mono_ms(),
        )
        self.quorum = Quorum(self.raft, log, self.controller, self._keep, world.send, world.deadlines, world.clock)
        self.controller.raise_kraft_version = self.quorum.raise_kraft_version
        log.on_written, log.on_flushed = self.quorum.written, self.quorum.flushed

    def start(self) -> None:
        """Take part in the quorum."""
        self.log.make_durable()
        self.quorum.start()

    def submit(self, request: Message, *, wall_ms: int, reply: Callable[[Any], None]) -> None:
        """Have this node's controller, or its quorum, decide on a request; `reply` gets the answer when it is committed."""
        controller, mono_ms = self.controller, self._world.clock.mono_ms()
        if isinstance(request, BrokerRegistrationRequest):
            controller.register_broker(request, wall_ms=wall_ms, reply=reply)
        elif isinstance(request, BrokerHeartbeatRequest):
            controller.heartbeat(request, wall_ms=wall_ms, mono_ms=mono_ms, reply=reply)
        elif isinstance(request, DescribeQuorumRequest):
            reply(self._described(mono_ms, wall_ms))
        elif isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            self.quorum.receive(request, reply)
        else:
            controller.submit(request, wall_ms=wall_ms, reply=reply)

    def _described(self, mono_ms: int, wall_ms: int) -> DescribeQuorumResponse:
        quorum = describe(self.raft, self.log.next_offset, mono_ms=mono_ms, wall_ms=wall_ms)
        voters = [replica.replica_id for replica in quorum.current_voters]
        nodes = [
            QuorumNode(
                node_id=node_id,
                listeners=[QuorumListener(name=e.listener, host=e.host, port=e.port) for e in controller.endpoints],
            )
            for node_id, controller in self.image.controllers.items()
            if node_id in voters
        ]
        topic = DescribedQuorumTopic(topic_name=METADATA_TOPIC, partitions=[quorum])
        return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=[topic], nodes=nodes)

    @property
    def image(self) -> MetadataImage:
        """The published image."""
        return self.publisher.image

    @property
    def features(self) -> dict[str, int]:
        """The levels in force, the quorum's own among them; what is at 0 is left out."""
        levels = {**self.publisher.image.features, KRAFT_VERSION: self.log.kraft_version.latest}
        return {name: level for name, level in levels.items() if level}

    def _keep(self, state: ElectionState, done: Callable[[], None]) -> None:
        voters = None if self.log.kraft_version.latest else self.raft.voters.node_ids

        def begin() -> Run:
            return partial(write_quorum_state, self._world.disk, self._path, state, static_voters=voters)

        def kept(error: StorageError | None) -> None:
            if error is not None:
                self.log.fail(error)
            else:
                done()

        self._world.worker.sync(self.log.directory, begin, kept)


def _own_voter(identity: Identity, own: OwnController, log: MetadataLog) -> Voter:
    """Who this replica is; where it listens for nobody, what the log says of it stays."""
    key = ReplicaKey(identity.node_id, identity.metadata_directory_id)
    known = log.voters.latest.get(identity.node_id)
    addresses = tuple(Address(e.listener, e.host, e.port) for e in own.endpoints)
    if not own.listens and known is not None:
        addresses = known.addresses
    return Voter(key, addresses, SUPPORTED_FEATURES[KRAFT_VERSION])
