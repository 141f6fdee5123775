"""A node's metadata side: its replica of the metadata log, its Raft instance, its controller, and the images it publishes.

NOT HERE What each of them does; sockets, threads and clocks, which are passed in.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from protocol.messages.cluster import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.controller import Controller, LocalController
from replication.controller.controller_client import Client
from replication.controller.decision_context import DecisionContext, KraftVersion
from replication.controller.periodic_tasks import DEFAULT_INTERVALS, PeriodicTasks, TaskIntervals
from replication.io_executor import IoResult
from replication.metadata.feature_levels import KRAFT_VERSION, SUPPORTED_FEATURES
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.metadata_log.describe_quorum import describe_quorum
from replication.metadata_log.kraft_replica import Dependencies, KRaftReplica
from replication.metadata_log.metadata_loader import MetadataLoader
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_log_open import OpenedMetadataLog
from replication.metadata_log.node_identity import NodeIdentity
from replication.metadata_log.quorum_state_store import write_quorum_state
from replication.raft.events import Signal
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter
from storage.directories.partition_directory import METADATA_DIRECTORY


class KraftOptions(NamedTuple):
    """The settings of the quorum and of the controller."""

    times: QuorumTimes
    session_timeout_ms: int
    """broker.session.timeout.ms."""
    bootstrap_servers: int = 0
    """The number of bootstrap servers to query for the leader, besides the voters."""
    auto_join: bool = False
    """controller.quorum.auto.join.enable."""
    intervals: TaskIntervals = DEFAULT_INTERVALS


class KRaftNode:
    """Wires the opened metadata log, Raft, controller and publisher; nothing runs before `start`."""

    def __init__(
        self,
        dependencies: Dependencies,
        identity: NodeIdentity,
        opened: OpenedMetadataLog,
        context: DecisionContext,
        local_controller: LocalController,
        options: KraftOptions,
    ) -> None:
        self._dependencies = dependencies
        self._path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
        self.log = log = opened.log
        local, clock = _local_voter(identity, local_controller, log), dependencies.clock
        state = QuorumState(
            local, log, opened.state, times=options.times, jitter=dependencies.random_below, mono_ms=clock.mono_ms()
        )
        self.raft = Raft(state, bootstrap_servers=options.bootstrap_servers, auto_join=options.auto_join)
        self.publisher = MetadataPublisher(opened.image)
        loader = MetadataLoader(log, self.publisher, is_in_transaction=opened.is_in_transaction)
        kraft_version = KraftVersion(lambda: log.kraft_version.latest, self.raft.check_kraft_version)
        context = context._replace(kraft_version=kraft_version)
        self.heartbeat_tracker = BrokerHeartbeatTracker(dependencies.timers, options.session_timeout_ms)
        periodic_tasks = PeriodicTasks(dependencies.timers, dependencies.clock.mono_ms, options.intervals)
        self.controller = Controller(
            loader,
            context,
            self.heartbeat_tracker,
            dependencies.clock,
            local_controller,
            opened.bootstrap,
            periodic_tasks,
        )
        self.quorum = KRaftReplica(
            self.raft,
            identity.cluster_id,
            log,
            self.controller,
            self._write_election_state,
            dependencies,
        )
        # Which part notifies which:
        log.on_written = partial(self.quorum.step, Signal.LOG_APPENDED)
        log.on_flushed = partial(self.quorum.step, Signal.LOG_FLUSHED)
        log.on_snapshot_loaded = loader.on_snapshot_loaded
        loader.leader = lambda: state.leader_id
        periodic_tasks.run_task = self.controller.run_periodic_task
        self.heartbeat_tracker.on_session_expired = self.controller.fence_expired_broker
        self.controller.raise_kraft_version = self.quorum.raise_kraft_version

    def start(self) -> None:
        """Join the quorum."""
        self.log.flush_initial_records()
        self.quorum.start()

    def submit(self, request: Message, client: Client | None = None) -> Completion[Any]:
        """Pass a request to this node's controller or quorum; the response exists when the decision is committed."""
        if isinstance(request, DescribeQuorumRequest):
            clock = self._dependencies.clock
            quorum = describe_quorum(self.raft.state, self.image, mono_ms=clock.mono_ms(), wall_ms=clock.wall_ms())
            return completed(quorum)
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            return self.quorum.handle_request(request)
        return self.controller.submit(request, client)

    @property
    def image(self) -> MetadataImage:
        """The published image."""
        return self.publisher.image

    @property
    def features(self) -> dict[str, int]:
        """The finalized feature levels, kraft.version included; features at level 0 are left out."""
        levels = {**self.publisher.image.features, KRAFT_VERSION: self.log.kraft_version.latest}
        return {name: level for name, level in levels.items() if level}

    def _write_election_state(self, state: ElectionState) -> Completion[None]:
        voters = None if self.log.kraft_version.latest else self.raft.state.voters.node_ids
        write = partial(write_quorum_state, self._dependencies.disk, self._path, state, static_voters=voters)
        durable: Completion[None] = Completion()

        def on_written(written: IoResult) -> None:
            if written.value is not None:
                self.log.fail(written.value)
            else:
                durable.complete(None)

        self._dependencies.executor.sync(self.log.directory, lambda: write).then(on_written)
        return durable


def _local_voter(identity: NodeIdentity, local_controller: LocalController, log: MetadataLog) -> Voter:
    """The local replica as a voter; if it has no listener, the addresses in the log are kept."""
    key = ReplicaKey(identity.node_id, identity.metadata_directory_id)
    recorded = log.voters.latest.get(identity.node_id)
    addresses = tuple(ListenerAddress(e.listener, e.host, e.port) for e in local_controller.endpoints)
    if not local_controller.listens and recorded is not None:
        addresses = recorded.addresses
    return Voter(key, addresses, SUPPORTED_FEATURES[KRAFT_VERSION])
