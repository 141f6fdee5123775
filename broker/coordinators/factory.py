"""Creates the coordinators of this broker from its settings and connects them.

RULES    1. Groups get a new image before transactions: the markers for offsets are written to the groups' partitions.
NOT HERE The coordinators; the configuration of the internal topics (`api_table.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.coordinators.delivery.delivery_manager import DeliveryManager
from broker.coordinators.group_config import ConsumerGroupSettings, GroupConfigManager, GroupSettings, MigrationPolicy
from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.group_counts import GroupCounts
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, M, ShardContext
from broker.coordinators.runtime.partition_writer import PartitionWriter
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.coordinators.transactions.remote_verification import RemoteVerification, SendToBroker
from broker.coordinators.transactions.transaction_coordinator import (
    TRANSACTION_VERSION,
    TRANSACTIONS_TOPIC,
    TransactionCoordinator,
    TransactionSettings,
)
from broker.coordinators.transactions.transaction_verification import TransactionVerification
from broker.coordinators.transactions.txn_marker_writer import TxnMarkerWriter
from replication.cooperative_tasks import CallSoon
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock, TimerQueue

_MINUTE_MS = 60_000


class DeliverySupport(NamedTuple):
    """What the delivery of schedule topics needs of the event loop and the network."""

    call_soon: CallSoon
    send: SendToBroker
    """Sends requests to all brokers, this one included, on connections of their own: markers must not wait behind them."""


class Coordinators(NamedTuple):
    """All coordinators of this broker, with the parts that handlers use."""

    groups: CoordinatorRuntime[GroupCoordinator]
    transactions: CoordinatorRuntime[TransactionCoordinator]
    verification: TransactionVerification
    markers: TxnMarkerWriter
    producer_ids: ProducerIdManager
    group_config_manager: GroupConfigManager
    group_counts: GroupCounts
    delivery: DeliveryManager

    def on_metadata_update(self, changes: MetadataDelta, image: MetadataImage, broker_id: int) -> None:
        """Apply a new image; call it after the partitions that this broker leads are open."""
        self.groups.on_metadata_update(changes, image, broker_id)
        self.transactions.on_metadata_update(changes, image, broker_id)
        self.delivery.on_metadata_update(changes, image)

    def close(self) -> None:
        """Close all coordinators."""
        self.delivery.close()
        self.transactions.close()
        self.groups.close()


def coordinators(
    config: BrokerConfig,
    replicas: ReplicaManager,
    timers: TimerQueue,
    clock: Clock,
    producer_ids: ProducerIdManager,
    send: SendToBroker,
    delivery: DeliverySupport,
) -> Coordinators:
    """Coordinators without shards: `on_metadata_update` adds them. `send` sends requests to other brokers."""
    settings, of_transactions = group_settings(config), transaction_settings(config)

    def image() -> MetadataImage:
        return replicas.image

    group_config_manager, group_counts = GroupConfigManager(settings.consumer, image), GroupCounts()

    def make_group_coordinator(context: ShardContext) -> GroupCoordinator:
        return GroupCoordinator(context, settings, group_config_manager, _new_member_id, image, group_counts)

    def make_transaction_coordinator(context: ShardContext) -> TransactionCoordinator:
        def version() -> int:
            return replicas.image.features.get(TRANSACTION_VERSION, 0)

        generate = producer_ids.generate_producer_id
        return TransactionCoordinator(context, of_transactions, markers, version, generate)

    def runtime(topic: str, make_coordinator: Callable[[ShardContext], M]) -> CoordinatorRuntime[M]:
        def open_log(partition: int) -> PartitionWriter:
            return PartitionWriter(replicas, topic, partition, clock)

        return CoordinatorRuntime(topic, make_coordinator, open_log, timers, clock)

    groups = runtime(OFFSETS_TOPIC, make_group_coordinator)
    groups.commit_timeout_ms = config.number("offsets.commit.timeout.ms")
    transactions = runtime(TRANSACTIONS_TOPIC, make_transaction_coordinator)
    verification = TransactionVerification(
        replicas,
        transactions,
        timers,
        clock,
        RemoteVerification(config.node_id, image, send),
        is_enabled=bool(config.value("transaction.partition.verification.enable")),
        retry_ms=config.number("add.partitions.to.txn.retry.backoff.ms"),
        max_wait_ms=config.number("add.partitions.to.txn.retry.backoff.max.ms"),
    )
    markers = TxnMarkerWriter(config.node_id, replicas, groups, verification, clock, send)
    delivery_manager = DeliveryManager(config.node_id, replicas, timers, clock, *delivery)
    parts = groups, transactions, verification, markers, producer_ids, group_config_manager, group_counts
    return Coordinators(*parts, delivery_manager)


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """The settings of transactions."""
    return TransactionSettings(
        abort_interval_ms=config.number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_ms=config.number("transactional.id.expiration.ms"),
        expiry_interval_ms=config.number("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


def group_settings(config: BrokerConfig) -> GroupSettings:
    """The settings of groups and offsets."""
    return GroupSettings(
        min_session_timeout_ms=config.number("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.number("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.number("group.initial.rebalance.delay.ms"),
        max_size=config.number("group.max.size"),
        offset_metadata_max_size=config.number("offset.metadata.max.bytes"),
        offsets_retention_ms=config.number("offsets.retention.minutes") * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.number("offsets.retention.check.interval.ms"),
        consumer=consumer_settings(config),
    )


def consumer_settings(config: BrokerConfig) -> ConsumerGroupSettings:
    """The settings with the prefix group.consumer."""

    def limits(name: str) -> tuple[int, int]:
        return config.number(f"group.consumer.min.{name}"), config.number(f"group.consumer.max.{name}")

    assignors = config.value("group.consumer.assignors")
    assert isinstance(assignors, list), "a list"
    return ConsumerGroupSettings(
        session_timeout_ms=config.number("group.consumer.session.timeout.ms"),
        heartbeat_interval_ms=config.number("group.consumer.heartbeat.interval.ms"),
        assignment_interval_ms=config.number("group.consumer.assignment.interval.ms"),
        regex_refresh_interval_ms=config.number("group.consumer.regex.refresh.interval.ms"),
        max_size=config.number("group.consumer.max.size"),
        assignors=tuple(assignors),
        migration_policy=MigrationPolicy(str(config.value("group.consumer.migration.policy")).lower()),
        limits={name: limits(name) for name in ConsumerGroupSettings().limits},
    )


def _new_member_id() -> str:
    """A random UUID as text, without importing `uuid`: the import takes milliseconds at start."""
    drawn = os.urandom(16).hex()
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"
