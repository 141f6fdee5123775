"""What this node shows to Prometheus and to probes: builds the sources of the metrics page from the node's parts.

RULES    1. The page is bound before anything else of the node is built, and answers from the start of its roles on: until the
            node is ready, `/readyz` says so.
         2. Requests are counted whether there is a page or not: the setting changes nothing on the hot path.
NOT HERE The sources (`broker/telemetry/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.coordinators.coordinator_metrics import CoordinatorMetrics
from broker.coordinators.delivery.delivery_metrics import DeliveryMetrics
from broker.coordinators.factory import Coordinators
from broker.coordinators.group_lag import GroupLag
from broker.coordinators.group_metrics import GroupMetrics
from broker.coordinators.transactions.remote_verification import SendToBroker
from broker.io.io_thread_pool import IoThreadPool
from broker.network.connection_metrics import ConnectionMetrics
from broker.network.listener import Listener
from broker.node.key_index import KeyIndex
from broker.node.key_index_metrics import KeyIndexMetrics
from broker.node.log_dir_metrics import LogDirMetrics
from broker.node.redpanda_metrics import RedpandaMetrics
from broker.process.watchdog import StallLog
from broker.quotas.client_quota_manager import ClientQuotaManager
from broker.telemetry.authentication_metrics import AuthenticationMetrics
from broker.telemetry.clients.received_metrics import ClientMetricsStore
from broker.telemetry.closed_logs import ClosedLogs
from broker.telemetry.cluster_metrics import ClusterMetrics
from broker.telemetry.commit_log_metrics import CommitLogMetrics
from broker.telemetry.exempt_time import ExemptTime
from broker.telemetry.families import Dialect, Source
from broker.telemetry.health_probes import NodeProbes, is_alive
from broker.telemetry.io_metrics import IoMetrics
from broker.telemetry.loop_metrics import IdleMetrics, LoopMetrics
from broker.telemetry.page import MetricsPage
from broker.telemetry.peer_traffic import PeerTraffic
from broker.telemetry.process_metrics import ProcessMetrics
from broker.telemetry.quota_metrics import MeteredQuotas, QuotaMetrics
from broker.telemetry.replica_metrics import ReplicaMetrics
from broker.telemetry.request_families import RequestFamilies
from broker.telemetry.request_metrics import NEVER_SLOW, RequestMetrics
from broker.telemetry.sampled_source import SampledSource, SampleSource
from broker.telemetry.topic_metrics import TopicMetrics
from replication.kraft_node import KRaftNode
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.timer_queue import Clock


class MeteredParts(NamedTuple):
    """The parts of a node that have metrics."""

    node: KRaftNode
    raft_traffic: PeerTraffic
    replicas: ReplicaManager
    purgatory: Purgatory
    coordinators: Coordinators
    io: IoThreadPool
    stalls: StallLog
    authentications: AuthenticationMetrics
    quotas: ClientQuotaManager
    client_metrics: ClientMetricsStore
    listeners: Sequence[Listener]
    send: SendToBroker
    """Sends a request to another broker."""
    key_index: KeyIndex


class NodeMetrics:
    """The counters of requests, and the metrics page."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        slow_ns = NEVER_SLOW if config.slow_request_ns is None else config.slow_request_ns
        self.requests = RequestMetrics(slow_ns)
        """Of clients and other brokers."""
        self.controller_requests = RequestMetrics(slow_ns)
        """On the controller's listeners."""
        self.is_started = False
        """Whether the node accepts clients, and is not stopping."""
        self._page: MetricsPage | None = None

    def bind(self) -> None:
        """Binds the page, if there is one.

        Raises:
            OSError: the address is in use or not local.
        """
        endpoint = self._config.metrics_listener
        if endpoint is not None:
            self._page = MetricsPage((endpoint.host, endpoint.port))

    def start(self, loop: asyncio.AbstractEventLoop, parts: MeteredParts) -> None:
        """Starts to answer."""
        page = self._page
        if page is None:
            return
        lag = GroupLag(parts.coordinators.groups, parts.replicas, parts.send, self._clock)
        groups = GroupMetrics(lag, parts.node.image.cluster_id)
        closed_logs = ClosedLogs(parts.replicas, parts.io)
        log_dirs = LogDirMetrics(parts.replicas, parts.io)
        sources = [*self._sources(parts, closed_logs), log_dirs, groups]
        page.prepare = lambda: chain(log_dirs.prepare(), closed_logs.prepare(), groups.prepare())
        redpanda = [RedpandaMetrics(parts.replicas, self.requests, lag, log_dirs)]
        kafka = (Dialect.JMX, Dialect.CONFLUENT, Dialect.REPORTER)
        page.sources = {**dict.fromkeys(kafka, sources), Dialect.REDPANDA: redpanda}
        image, replicas = parts.node.publisher, parts.replicas
        probes = NodeProbes(
            self._config.node_id,
            lambda: image.image,
            lambda topic: replicas.config_of(topic).min_insync_replicas,
            "broker" in self._config.roles,
            lambda: self.is_started,
        )
        page.probes = {"/healthz": is_alive, "/readyz": probes.is_ready, "/safe-to-stop": probes.is_safe_to_stop}
        if "broker" in self._config.roles:
            page.search = parts.key_index.page.answer
        page.start(loop)

    def close(self) -> None:
        """Stops answering."""
        if self._page is not None:
            self._page.close()

    def _sources(self, parts: MeteredParts, closed_logs: ClosedLogs) -> list[Source]:
        roles, loop = self._config.roles, LoopMetrics(parts.stalls)
        cluster = ClusterMetrics(
            parts.node,
            self._config.node_id,
            self._clock.mono_ms,
            parts.raft_traffic,
            is_broker="broker" in roles,
            is_controller="controller" in roles,
            is_started=lambda: self.is_started,
        )
        mutations = parts.node.controller.mutation_quotas
        connections = {listener.quotas for listener in parts.listeners}
        exempt = ExemptTime(self.requests, self.controller_requests, self._clock.mono_ms)
        quotas = QuotaMetrics(MeteredQuotas(parts.quotas, mutations, connections, exempt))
        return [
            ProcessMetrics(),
            self._sampled(loop, "The event loop of this node."),
            IdleMetrics(loop, self._clock.mono_ms),
            RequestFamilies([self.requests, self.controller_requests]),
            TopicMetrics(parts.replicas.counts),
            ReplicaMetrics(parts.replicas, parts.purgatory, closed_logs),
            IoMetrics(parts.io),
            CommitLogMetrics(parts.replicas.log_manager),
            ConnectionMetrics(parts.listeners),
            cluster,
            CoordinatorMetrics(parts.coordinators, self._clock.mono_ms),
            DeliveryMetrics(parts.coordinators.delivery, self._clock.wall_ms),
            KeyIndexMetrics(parts.key_index.search),
            self._sampled(parts.authentications, "Authentications by listener."),
            self._sampled(quotas, "Quotas of clients and connections."),
            self._sampled(parts.client_metrics, "Reported by clients (KIP-714)."),
        ]

    def _sampled(self, source: SampleSource, explanation: str) -> SampledSource:
        return SampledSource(source, explanation, self._clock.mono_ms)
