"""The API tables of the listeners: creates every handler with its dependencies.

RULES    1. Handlers are created here and nowhere else; none has a reference to the server.
NOT HERE Sockets and startup order (`server.py`), the APIs (`handlers/`).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from functools import partial

from broker.config.broker_config import BrokerConfig
from broker.config.security_configs import security_protocol
from broker.coordinators.factory import Coordinators
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from broker.handlers import authentication
from broker.handlers.admin.acls import AclHandlers
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.admin.cluster_admin import ClusterHandlers
from broker.handlers.admin.configs import ConfigHandlers
from broker.handlers.admin.delegation_tokens import DelegationTokenHandlers
from broker.handlers.admin.metadata import MetadataHandlers
from broker.handlers.admin.quotas_scram import QuotaAndScramHandlers
from broker.handlers.admin.topics import TopicHandlers
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.groups.classic_groups import ClassicGroupHandlers
from broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from broker.handlers.groups.find_coordinator import GROUP, TRANSACTION, FindCoordinatorHandler
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from broker.handlers.quorum.controller_apis import ControllerHandlers
from broker.handlers.quorum.envelopes import EnvelopeHandler
from broker.handlers.quorum.raft_apis import RaftHandlers
from broker.handlers.records.delete_records import DeleteRecordsHandler
from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import FetchSessions
from broker.handlers.records.follower_wakeup import FollowerWakeup
from broker.handlers.records.list_offsets import ListOffsetsHandler
from broker.handlers.records.log_dirs import LogDirsHandler
from broker.handlers.records.produce import ProduceHandler
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.records.search import SearchHandler
from broker.handlers.router import Router
from broker.handlers.telemetry import TelemetryHandlers
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.handlers.transactions.txn_markers import TxnMarkersHandler
from broker.peers.controller_channel import ControllerChannel
from broker.peers.endpoints import AdvertisedEndpoints
from broker.process.resource_limits import memory_bytes
from broker.process.timer import mono_ms
from broker.security.authorizer import Authorizer
from broker.telemetry.clients.client_instances import ClientInstances
from broker.telemetry.clients.received_metrics import ClientMetricsStore
from protocol.api import ApiKey
from protocol.messages.admin import ConfigEntry, CreatableTopic
from protocol.primitives import new_uuid
from replication.kraft_node import KRaftNode
from replication.metadata.image import MetadataImage
from replication.partition.append_history import AppendedBytes
from replication.partition.key_search import KeySearch
from replication.partition.replica_manager import ReplicaManager
from replication.partition.replica_selector import SELECTORS, ReplicaSelector, by_backlog
from replication.purgatory import Purgatory
from replication.timer_queue import TimerQueue


def client_apis(
    config: BrokerConfig,
    node: KRaftNode,
    channel: ControllerChannel,
    replicas: ReplicaManager,
    coordinators: Coordinators,
    purgatory: Purgatory,
    addresses: AdvertisedEndpoints,
    authorizer: Authorizer,
    log_dirs: LogDirsHandler,
    client_metrics: ClientMetricsStore,
    broker_configs: BrokerConfigValidator,
    search: KeySearch,
) -> Router:
    """The API table of a client listener."""

    def image() -> MetadataImage:
        return channel.image

    groups, ids, verification = coordinators.groups, coordinators.producer_ids, coordinators.verification
    internal_topics = {GROUP: _offsets_topic(config), TRANSACTION: _transactions_topic(config)}
    by_name = {topic.name: topic for topic in internal_topics.values()}
    metadata = MetadataHandlers(channel, addresses, authorizer, config, by_name.get, node.publisher.call_soon)
    find_coordinator = FindCoordinatorHandler(channel, addresses, authorizer, internal_topics)
    limits = config.number("offsets.topic.num.partitions"), config.number("transaction.max.timeout.ms")
    transactions = TransactionHandlers(coordinators.transactions, groups, ids, image, authorizer, *limits)
    instances = ClientInstances(image, lambda: new_uuid(secrets.token_bytes))
    telemetry = TelemetryHandlers(instances, client_metrics, config.number("telemetry.max.bytes"))
    return ApiVersionsHandler(node).table_of(
        [
            *ProduceHandler(ProduceServices(replicas, purgatory.timers, verification, authorizer)).routes(),
            *FetchHandler(_fetch_services(config, replicas, purgatory, authorizer)).routes(),
            *ListOffsetsHandler(replicas, authorizer).routes(),
            *metadata.routes(),
            *find_coordinator.routes(),
            *authentication.routes(),
            *ClassicGroupHandlers(groups, authorizer).routes(),
            *ConsumerGroupHandlers(
                groups,
                image,
                authorizer,
                is_enabled="consumer" in config.texts("group.coordinator.rebalance.protocols"),
            ).routes(),
            *GroupOffsetsHandlers(groups, verification, image, authorizer).routes(),
            *transactions.routes(),
            *TxnMarkersHandler(replicas, coordinators.markers, authorizer).routes(),
            *TopicHandlers(channel, authorizer, purgatory.timers, config, broker_configs).routes(),
            *ConfigHandlers(image, config, authorizer).routes(),
            *ClusterHandlers(channel, authorizer, purgatory.timers).routes(),
            *QuotaAndScramHandlers(channel, authorizer).routes(),
            *AclHandlers(channel, authorizer).routes(),
            *DelegationTokenHandlers(channel, authorizer, config.tokens, partial(security_protocol, config)).routes(),
            *DeleteRecordsHandler(replicas, purgatory, authorizer).routes(),
            *log_dirs.routes(),
            *SearchHandler(search, purgatory.timers, authorizer).routes(),
            # Without a page the metrics of clients are not read; Apache Kafka without a receiver has no such APIs.
            *(telemetry.routes() if config.metrics_listener is not None else ()),
        ]
    )


def _fetch_services(
    config: BrokerConfig, replicas: ReplicaManager, purgatory: Purgatory, authorizer: Authorizer
) -> FetchServices:
    slots = config.number("max.incremental.fetch.session.cache.slots")
    sessions = FetchSessions(purgatory, lambda: random.randrange(1, 2**31), slots)  # noqa: S311  # not a secret
    replicas.on_leadership_changed = FollowerWakeup(sessions, purgatory.timers, mono_ms).on_leadership_change
    services = FetchServices(replicas, sessions, purgatory, authorizer, config.number("fetch.max.bytes"))
    select = SELECTORS.get(str(config.value("replica.selector.class")))
    if select is not None:
        services.select_replica = ReplicaSelector(replicas, select).select
        sessions.sends_high_watermarks = True
        if select is by_backlog:
            ratio = config.decimal("barnabas.replica.selector.memory.ratio")
            replicas.appended_bytes = AppendedBytes(int(memory_bytes() * ratio))
    return services


def controller_apis(config: BrokerConfig, node: KRaftNode, authorizer: Authorizer, timers: TimerQueue) -> Router:
    """The API table of a controller listener."""
    users = QuotaAndScramHandlers(node, authorizer).routes()
    configs = ConfigHandlers(lambda: node.image, config, authorizer).routes()
    routes = [
        *ControllerHandlers(node, authorizer).routes(),
        *RaftHandlers(node.quorum, authorizer).routes(),
        *ClusterHandlers(node, authorizer, timers).routes(),
        *TopicHandlers(node, authorizer, timers, config, broker_configs=None).routes(),
        *(route for route in users if route.api_key != ApiKey.DESCRIBE_CLIENT_QUOTAS),
        *(route for route in configs if route.api_key != ApiKey.LIST_CONFIG_RESOURCES),
        *AclHandlers(node, authorizer).routes(),
        *DelegationTokenHandlers(node, authorizer, config.tokens, partial(security_protocol, config)).routes(),
        *authentication.routes(),
    ]
    forwarded = [*routes, *DelegationTokenHandlers(node, authorizer, config.tokens, None).routes()]
    return ApiVersionsHandler(node).table_of([*routes, *EnvelopeHandler(forwarded, authorizer).routes()])


def _offsets_topic(config: BrokerConfig) -> CreatableTopic:
    """`__consumer_offsets`, for its creation on first use."""
    return _internal_topic(config, OFFSETS_TOPIC, "offsets.topic.", {"compression.type": "producer"})


def _transactions_topic(config: BrokerConfig) -> CreatableTopic:
    """`__transaction_state`, for its creation on first use."""
    configs = {
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.number("transaction.state.log.min.isr")),
        "unclean.leader.election.enable": "false",
    }
    return _internal_topic(config, TRANSACTIONS_TOPIC, "transaction.state.log.", configs)


def _internal_topic(config: BrokerConfig, name: str, prefix: str, configs: Mapping[str, str]) -> CreatableTopic:
    """An internal topic with the settings of this prefix."""
    segment_bytes = str(config.number(f"{prefix}segment.bytes"))
    texts = {**configs, "cleanup.policy": "compact", "segment.bytes": segment_bytes}
    return CreatableTopic(
        name=name,
        num_partitions=config.number(f"{prefix}num.partitions"),
        replication_factor=config.number(f"{prefix}replication.factor"),
        configs=[ConfigEntry(name=key, value=text) for key, text in sorted(texts.items())],
    )
