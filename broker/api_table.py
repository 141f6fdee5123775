"""The API tables of the listeners, clients' and controllers': every handler with the two or three things it needs.

RULES    1. Handlers are made here and nowhere else; none gets "the broker".
NOT HERE Sockets and the order of starting (`server.py`), what an API does (`handlers/`).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import BrokerRules
from broker.coordinators.factory import Coordinators
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from broker.handlers import authentication
from broker.handlers.admin.broker_config_validation import OwnSettings
from broker.handlers.admin.cluster_admin import ClusterHandlers
from broker.handlers.admin.configs import ConfigHandlers
from broker.handlers.admin.metadata import MetadataHandlers
from broker.handlers.admin.quotas_scram import UserHandlers
from broker.handlers.admin.topics import AdminHandlers
from broker.handlers.api_versions import ApiVersionsHandler
from broker.handlers.controller_api import Controller
from broker.handlers.groups.classic_groups import CoordinationHandlers
from broker.handlers.groups.consumer_groups import ConsumerGroupHandlers
from broker.handlers.groups.find_coordinator import GROUP, TRANSACTION, FindCoordinatorHandler
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from broker.handlers.groups.offset_delete import OffsetDeletionHandler
from broker.handlers.quorum.controller_apis import ControllerHandlers
from broker.handlers.quorum.envelopes import EnvelopeHandler
from broker.handlers.quorum.raft_apis import RaftHandlers
from broker.handlers.records import fetch, fetch_fast_path, list_offsets, produce, produce_fast_path
from broker.handlers.records.delete_records import DeleteRecordsHandler
from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_sessions import FetchSessions
from broker.handlers.records.follower_wakeup import FollowerCalls
from broker.handlers.records.list_offsets import OffsetsHandler
from broker.handlers.records.log_dirs import LogDirsHandler
from broker.handlers.records.produce import ProduceHandler
from broker.handlers.router import Router
from broker.handlers.telemetry import TelemetryHandlers
from broker.handlers.transactions import producer_ids
from broker.handlers.transactions.producer_ids import ProducerIdsHandler
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.handlers.transactions.txn_markers import PartitionTransactionsHandler
from broker.handlers.transactions.txn_offset_commit import TransactionalOffsetsHandler
from broker.peers.controller_channel import ControllerChannel
from broker.peers.endpoints import Addresses
from broker.process.memory_limit import memory_bytes
from broker.process.timer import SystemClock
from broker.security.authorizer import Authorizer
from broker.telemetry.instances import ClientInstances
from broker.telemetry.received import ReceivedMetrics
from protocol.api import ApiKey
from protocol.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse
from replication.kraft_node import MetadataNode
from replication.metadata.image import MetadataImage
from replication.metadata_log.formatting import new_uuid
from replication.partition.append_history import Appends
from replication.partition.replica_manager import ReplicaManager
from replication.partition.replica_selector import ReadPlaces, by_backlog
from replication.purgatory import Purgatory
from replication.timer_queue import Deadlines

_MINUTE_MS = 60_000


def client_apis(
    config: BrokerConfig,
    node: MetadataNode,
    channel: ControllerChannel,
    replicas: ReplicaManager,
    coordinators: Coordinators,
    purgatory: Purgatory,
    addresses: Addresses,
    authorizer: Authorizer,
    log_dirs: LogDirsHandler,
    received: ReceivedMetrics,
) -> Router:
    """The table of a listener that clients connect to."""

    def image() -> MetadataImage:
        return channel.image

    def create_topics(
        request: CreateTopicsRequest, wall_ms: int, reply: Callable[[CreateTopicsResponse], None]
    ) -> None:
        channel.submit(request, wall_ms=wall_ms, reply=reply)

    groups, transactions, admission, markers, ids, _ = coordinators
    internal_topics = {GROUP: _offsets_topic(config), TRANSACTION: _transactions_topic(config)}
    by_name = {topic.name: topic for topic in internal_topics.values()}
    metadata = MetadataHandlers(
        image,
        addresses,
        authorizer,
        create_topics,
        auto_create=bool(config.value("auto.create.topics.enable")),
        internal_topics=by_name.get,
        partition_limit=config.number("max.request.partition.size.limit"),
        soon=node.publisher.soon,
    )
    finding = FindCoordinatorHandler(image, addresses, authorizer, create_topics, internal_topics)
    limits = config.number("offsets.topic.num.partitions"), config.number("transaction.max.timeout.ms")
    transacting = TransactionHandlers(transactions, groups, image, ids.take, authorizer, *limits)
    instances = ClientInstances(image, lambda: new_uuid(secrets.token_bytes))
    producing = ProduceHandler(replicas, purgatory.deadlines, admission, authorizer)
    fetching = _fetching(config, replicas, purgatory, authorizer)
    return ApiVersionsHandler(node).table_of(
        [
            *produce.routes(producing, produce_fast_path.shortcuts(producing)),
            *fetch.routes(fetching, fetch_fast_path.shortcuts(fetching)),
            *list_offsets.routes(OffsetsHandler(replicas, authorizer)),
            *producer_ids.routes(ProducerIdsHandler(ids, transacting.init_producer_id, authorizer)),
            *metadata.routes(),
            *finding.routes(),
            *authentication.routes(),
            *CoordinationHandlers(groups, authorizer).routes(),
            *ConsumerGroupHandlers(groups, image, authorizer).routes(),
            *GroupOffsetsHandlers(groups, image, authorizer).routes(),
            *OffsetDeletionHandler(groups, image, authorizer).routes(),
            *TransactionalOffsetsHandler(groups, admission, image, authorizer).routes(),
            *transacting.routes(),
            *PartitionTransactionsHandler(replicas, markers, authorizer).routes(),
            *_admin(
                config, channel, authorizer, purgatory.deadlines, OwnSettings(config.node_id, BrokerRules(config))
            ).routes(),
            *ConfigHandlers(image, config, authorizer).routes(),
            *ClusterHandlers(channel, authorizer, purgatory.deadlines).routes(),
            *UserHandlers(channel, authorizer).routes(),
            *DeleteRecordsHandler(replicas, purgatory, authorizer).routes(),
            *log_dirs.routes(),
            *TelemetryHandlers(instances, received, config.number("telemetry.max.bytes")).routes(),
        ]
    )


def _fetching(
    config: BrokerConfig, replicas: ReplicaManager, purgatory: Purgatory, authorizer: Authorizer
) -> FetchHandler:
    sessions = FetchSessions(purgatory, _new_session_id, config.number("max.incremental.fetch.session.cache.slots"))
    replicas.on_leadership = FollowerCalls(sessions, purgatory.deadlines, SystemClock().mono_ms).led
    fetching = FetchHandler(replicas, sessions, purgatory, authorizer, config.number("fetch.max.bytes"))
    choose = config.read_places()
    if choose is not None:
        fetching.select_replica = ReadPlaces(replicas, choose).select
        sessions.tells_watermarks = True
        if choose is by_backlog:
            replicas.appends = Appends(int(memory_bytes() * config.memory_ratio))
    return fetching


def controller_apis(config: BrokerConfig, node: MetadataNode, authorizer: Authorizer, deadlines: Deadlines) -> Router:
    """The table of a listener that the cluster's other nodes connect to."""
    users = UserHandlers(node, authorizer).routes()
    configs = ConfigHandlers(lambda: node.image, config, authorizer).routes()
    routes = [
        *ControllerHandlers(node, authorizer).routes(),
        *RaftHandlers(node.quorum, authorizer).routes(),
        *ClusterHandlers(node, authorizer, deadlines).routes(),
        *_admin(config, node, authorizer, deadlines).routes(),
        *(route for route in users if route.api_key != ApiKey.DESCRIBE_CLIENT_QUOTAS),
        *(route for route in configs if route.api_key != ApiKey.LIST_CONFIG_RESOURCES),
        *authentication.routes(),
    ]
    return ApiVersionsHandler(node).table_of([*routes, *EnvelopeHandler(routes, authorizer).routes()])


def _admin(
    config: BrokerConfig,
    controller: Controller,
    authorizer: Authorizer,
    deadlines: Deadlines,
    own_settings: OwnSettings | None = None,
) -> AdminHandlers:
    can_delete = bool(config.value("delete.topic.enable"))
    return AdminHandlers(
        config.node_id,
        controller,
        lambda: controller.image,
        authorizer,
        deletion_enabled=can_delete,
        deadlines=deadlines,
        own_settings=own_settings,
    )


def _offsets_topic(config: BrokerConfig) -> CreatableTopic:
    """`__consumer_offsets` as it is made when first needed."""
    texts = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.number("offsets.topic.segment.bytes")),
    }
    return CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config.number("offsets.topic.num.partitions"),
        replication_factor=config.number("offsets.topic.replication.factor"),
        configs=[CreatableTopicConfig(name=name, value=text) for name, text in texts.items()],
    )


def _transactions_topic(config: BrokerConfig) -> CreatableTopic:
    """`__transaction_state` as it is made when first needed."""
    texts = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.number("transaction.state.log.min.isr")),
        "segment.bytes": str(config.number("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }
    return CreatableTopic(
        name=TRANSACTIONS_TOPIC,
        num_partitions=config.number("transaction.state.log.num.partitions"),
        replication_factor=config.number("transaction.state.log.replication.factor"),
        configs=[CreatableTopicConfig(name=name, value=text) for name, text in texts.items()],
    )


def _new_session_id() -> int:
    return random.randrange(1, 2**31)  # noqa: S311  # no secret: it must only differ
