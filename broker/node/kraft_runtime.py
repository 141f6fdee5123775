"""A node's KRaft parts on the event loop: raft replica, controller, and the connections to those of other nodes.

RULES    1. The raft replica has its own connections: a broker's request to the controller may wait for a commit. So have
            clients' requests, which may wait longer than a heartbeat may.
NOT HERE The requests (`replication/`), partitions and clients (`server.py`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from broker.config.security_configs import controller_credentials
from broker.network.peer import ClientContext, peer_login
from broker.peers.controller_channel import ControllerChannel
from broker.peers.controller_peers import ControllerPeers
from broker.peers.controller_registration import ControllerRegistration
from broker.peers.quorum_config import QuorumConfig
from broker.security.node_tls import NodeTls
from protocol.primitives import new_uuid
from replication.completion import Completion
from replication.controller.controller import LocalController
from replication.controller.decision_context import DecisionContext
from replication.io_executor import IoExecutor
from replication.kraft_node import KRaftNode, KraftOptions
from replication.metadata.image import Endpoint, MetadataImage
from replication.metadata_log.kraft_replica import Dependencies
from replication.metadata_log.metadata_log_open import OpenedMetadataLog
from replication.metadata_log.node_identity import NodeIdentity
from replication.timer_queue import Clock, TimerQueue
from storage.io.disk import Disk

_RESIGN_DELAY_MS: Final = 200
"""After resigning, the controller answers for this long, so that the other voters learn of it and need no timeout."""


class RuntimeDependencies(NamedTuple):
    """The event loop, disk, I/O, timers and clock of the node."""

    loop: asyncio.AbstractEventLoop
    disk: Disk
    worker: IoExecutor
    timers: TimerQueue
    clock: Clock


class KraftRuntime:
    """Built from the replayed metadata log; nothing runs before `node.start`."""

    def __init__(
        self,
        config: BrokerConfig,
        dependencies: RuntimeDependencies,
        quorum_config: QuorumConfig,
        identity: NodeIdentity,
        start: OpenedMetadataLog,
        endpoints: tuple[Endpoint, ...],
        tls: NodeTls,
    ) -> None:
        """`endpoints`: those of this controller, that of the quorum first."""
        self._config = config
        self._tls = tls
        self._dependencies = dependencies
        self._quorum_config = quorum_config
        self.incarnation_id = new_uuid(secrets.token_bytes)
        """Of this process."""
        controller_info = LocalController(
            self.incarnation_id,
            endpoints,
            listens=bool(config.controller_listeners),
            is_broker="broker" in config.roles,
        )
        timeouts = ("controller.quorum.request.timeout.ms",) * 2 + ("controller.socket.timeout.ms",)
        self._peers = tuple(self._controller_peers(endpoints[0].listener, timeout) for timeout in timeouts)
        raft_peers, channel_peers, client_peers = self._peers
        _, disk, worker, timers, clock = dependencies
        self.node = node = KRaftNode(
            Dependencies(disk, worker, timers, clock, random.randrange, raft_peers.send_request_to),
            identity,
            start,
            self._decision_context(start.image),
            controller_info,
            KraftOptions(
                config.quorum_times(),
                config.number("broker.session.timeout.ms"),
                bootstrap_servers=len(quorum_config.bootstrap),
                auto_join=bool(config.value("controller.quorum.auto.join.enable")),
                intervals=config.controller_intervals(),
            ),
        )
        for peers in self._peers:
            peers.image = lambda: node.image
            peers.voters = lambda: node.raft.state.voters
        self.channel = ControllerChannel(
            config.node_id,
            node,
            node.publisher,
            channel_peers.send_request,
            client_peers.send_request,
            timers,
            clock,
        )
        """To the active controller."""
        self.registration = ControllerRegistration(config.node_id, controller_info, self.channel)
        """Of this node's controller."""
        self.raft_traffic = raft_peers.traffic
        """Of this node's Raft replica, with the others."""

    def resign_if_leader(self) -> None:
        """Resigns as leader if there are other voters: this log cannot grow now."""
        if self.node.quorum.is_leading and len(self.node.raft.state.voters) > 1:
            self.node.quorum.resign()

    def shut_down(self) -> Completion[None]:
        """Resigns and closes all connections; completes when the other voters can know of it."""
        ended: Completion[None] = Completion()

        def end() -> None:
            for peers in self._peers:
                peers.close()
            ended.complete(None)

        quorum = self.node.quorum
        if not quorum.is_leading or len(self.node.raft.state.voters) == 1:
            end()
        else:
            quorum.resign()
            self._dependencies.timers.schedule(self._dependencies.clock.mono_ms() + _RESIGN_DELAY_MS, end)
        return ended

    def _controller_peers(self, listener: str, response_timeout: str) -> ControllerPeers:
        """Connections to the other controllers; `response_timeout` is the setting with their timeout."""
        loop, _, _, timers, clock = self._dependencies
        timeout_ms = self._config.number("controller.quorum.request.timeout.ms")
        tls, login = self._tls.of(listener), peer_login(controller_credentials(self._config))
        name = f"barnabas-{self._config.node_id}"
        caller = ClientContext(loop, name, timers, clock.mono_ms, timeout_ms, tls, login)
        return ControllerPeers(caller, self._quorum_config.bootstrap, listener, self._config.number(response_timeout))

    def _decision_context(self, image: MetadataImage) -> DecisionContext:
        config = self._config
        return DecisionContext(
            image=image,
            node_id=config.node_id,
            static_configs=config.given,
            broker_configs=DynamicBrokerConfig(config),
            num_partitions=config.number("num.partitions"),
            default_replication_factor=config.number("default.replication.factor"),
            new_id=lambda: new_uuid(secrets.token_bytes),
            random_below=random.Random().randrange,  # noqa: S311  # no secret, and no system call for each partition
            tokens=config.tokens,
            wall_ms=self._dependencies.clock.wall_ms,
        )
