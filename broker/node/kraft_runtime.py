"""A node's part in the metadata, on the event loop: quorum and controller, and the ways to those of other nodes.

RULES    1. The quorum has connections of its own: what a broker asks the controller may wait until the quorum has spoken.
NOT HERE What is asked (`replication/`), partitions and clients (`server.py`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import BrokerRules
from broker.network.peer import Caller
from broker.peers.controller_channel import ControllerChannel
from broker.peers.controller_peers import Controllers
from broker.peers.controller_registration import ControllerRegistration
from broker.peers.local_endpoints import PLAINTEXT
from broker.peers.quorum_config import QuorumPlaces
from broker.process.timer import SystemClock
from replication.controller.brokers.broker_heartbeat_tracker import Sessions
from replication.controller.controller import OwnController
from replication.controller.decision_context import Environment
from replication.io_executor import Worker
from replication.kraft_node import MetadataNode, World
from replication.metadata.image import Endpoint
from replication.metadata_log.formatting import ControllerEndpoint, Identity, new_uuid
from replication.metadata_log.metadata_log_open import MetadataStart
from replication.timer_queue import Deadlines
from storage.io.disk import Disk

_FAREWELL_MS: Final = 200
"""So long who led the quorum goes on, so that the others need not miss it before they elect another one."""


class Around(NamedTuple):
    """What the part has around it."""

    loop: asyncio.AbstractEventLoop
    disk: Disk
    worker: Worker
    deadlines: Deadlines
    clock: SystemClock


class MetadataPart:
    """Made of what the directory held at the start; nothing happens before `node.start`."""

    def __init__(
        self,
        config: BrokerConfig,
        around: Around,
        places: QuorumPlaces,
        identity: Identity,
        start: MetadataStart,
        sessions: Sessions,
        controller: ControllerEndpoint,
    ) -> None:
        """Make it.

        Args:
            config: of this node.
            around: what it has around it.
            places: where the controllers are.
            identity: of this node.
            start: its metadata log.
            sessions: of brokers.
            controller: where its controller is reached.
        """
        self._config = config
        self._around = around
        self._places = places
        self.incarnation_id = new_uuid(secrets.token_bytes)
        """Of this process."""
        endpoint = Endpoint(controller.listener, controller.host, controller.port, PLAINTEXT)
        own = OwnController(self.incarnation_id, (endpoint,), listens=bool(config.controller_listeners))
        in_quorum, of_broker = (self._controllers(controller.listener) for _ in range(2))
        self._connections = (in_quorum, of_broker)
        loop, disk, worker, deadlines, clock = around
        self.node = node = MetadataNode(
            World(disk, worker, deadlines, clock, random.randrange, in_quorum.ask_at),
            identity,
            start,
            self._environment(),
            sessions,
            own,
            times=config.quorum_times(),
            bootstrap_servers=len(places.bootstrap),
            joins=bool(config.value("controller.quorum.auto.join.enable")),
            intervals=config.controller_intervals(),
        )
        for connections in self._connections:
            connections.image = lambda: node.image
            connections.voters = lambda: node.raft.voters
        node.publisher.soon = node.log.soon = loop.call_soon
        self.channel = ControllerChannel(config.node_id, node, node.publisher, of_broker.ask, deadlines, clock)
        """To the active controller."""
        node.quorum.on_leader = self.channel.leader_changed
        self.registration = ControllerRegistration(config.node_id, own, self.channel, clock)
        """Of this node's controller."""

    def hand_over(self) -> None:
        """Have another controller lead, where there is one: this one's log takes nothing for now."""
        if self.node.quorum.is_leading and len(self.node.raft.voters) > 1:
            self.node.quorum.resign()

    def leave(self, left: Callable[[], None]) -> None:
        """Lead no longer, and ask nobody any more; `left` follows when other voters could hear of it."""

        def end() -> None:
            for connections in self._connections:
                connections.close()
            left()

        quorum = self.node.quorum
        if not quorum.is_leading or len(self.node.raft.voters) == 1:
            end()
            return
        quorum.resign()
        self._around.deadlines.schedule(self._around.clock.mono_ms() + _FAREWELL_MS, end)

    def _controllers(self, listener: str) -> Controllers:
        around, timeout_ms = self._around, self._config.number("controller.quorum.request.timeout.ms")
        caller = Caller(
            around.loop, f"barnabas-{self._config.node_id}", around.deadlines, around.clock.mono_ms, timeout_ms
        )
        return Controllers(caller, self._places.bootstrap, listener)

    def _environment(self) -> Environment:
        config = self._config
        return Environment(
            node_id=config.node_id,
            settings=config.given,
            rules=BrokerRules(config),
            num_partitions=config.number("num.partitions"),
            default_replication_factor=config.number("default.replication.factor"),
            new_id=lambda: new_uuid(secrets.token_bytes),
            random_below=random.Random().randrange,  # noqa: S311  # no secret, and no system call for each partition
        )
