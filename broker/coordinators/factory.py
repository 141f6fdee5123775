"""All coordinators of this broker, made from its settings, with what they and the partitions need of each other.

RULES    1. Groups hear of a new image before transactions: markers for offsets go to the groups.
NOT HERE What a coordinator does; the topics in which coordinators keep their state (`apis.py`).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from broker.config.broker_config import BrokerConfig
from broker.coordinators.classic.classic_protocol import GroupSettings
from broker.coordinators.consumer_group_config import ConsumerGroupSettings, MigrationPolicy, SettingsOfGroups
from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.runtime.coordinator_runtime import Clock, CoordinatorRuntime, Host
from broker.coordinators.runtime.partition_writer import ReplicaLog
from broker.coordinators.transactions.producer_id_manager import ProducerIds
from broker.coordinators.transactions.remote_verification import TransactionLookup
from broker.coordinators.transactions.transaction_coordinator import (
    TRANSACTION_VERSION,
    TRANSACTIONS_TOPIC,
    TransactionCoordinator,
    TransactionSettings,
)
from broker.coordinators.transactions.transaction_verification import Admission
from broker.coordinators.transactions.txn_marker_channel import Ask, ClusterMarkers
from broker.coordinators.transactions.txn_marker_writer import LocalMarkers
from replication.metadata.image import Changes, MetadataImage
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Deadlines

_MINUTE_MS = 60_000


class Coordinators(NamedTuple):
    """Everybody who coordinates something here."""

    groups: CoordinatorRuntime[GroupCoordinator]
    transactions: CoordinatorRuntime[TransactionCoordinator]
    admission: Admission
    markers: LocalMarkers
    producer_ids: ProducerIds
    settings_of_groups: SettingsOfGroups

    def image_changed(self, changes: Changes, image: MetadataImage, broker_id: int) -> None:
        """Follow the cluster; to be called when the partitions that this broker leads are ready."""
        self.groups.image_changed(changes, image, broker_id)
        self.transactions.image_changed(changes, image, broker_id)

    def close(self) -> None:
        """Resign from everything."""
        self.transactions.close()
        self.groups.close()


def coordinators(
    config: BrokerConfig,
    replicas: ReplicaManager,
    deadlines: Deadlines,
    clock: Clock,
    producer_ids: ProducerIds,
    ask: Ask,
) -> Coordinators:
    """Coordinators that know of nothing yet: `image_changed` brings it; `ask` asks other brokers."""

    def image() -> MetadataImage:
        return replicas.image

    settings_of_groups = SettingsOfGroups(consumer_settings(config), lambda: replicas.image)
    groups = _groups(config, settings_of_groups, replicas, deadlines, clock)
    settings = TransactionSettings(
        abort_interval_ms=config.number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        expiration_ms=config.number("transactional.id.expiration.ms"),
        expiry_interval_ms=config.number("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )

    def make(host: Host) -> TransactionCoordinator:
        def version() -> int:
            return replicas.image.features.get(TRANSACTION_VERSION, 0)

        return TransactionCoordinator(host, settings, everywhere, version, producer_ids.take)

    def open_log(partition: int) -> ReplicaLog:
        return ReplicaLog(replicas, TRANSACTIONS_TOPIC, partition, clock)

    transactions = CoordinatorRuntime(TRANSACTIONS_TOPIC, make, open_log, deadlines, clock)
    admission = Admission(
        replicas,
        transactions,
        deadlines,
        clock,
        TransactionLookup(config.node_id, image, ask),
        does_verify=bool(config.value("transaction.partition.verification.enable")),
        retry_ms=config.number("add.partitions.to.txn.retry.backoff.ms"),
        patience_ms=config.number("add.partitions.to.txn.retry.backoff.max.ms"),
    )
    markers = LocalMarkers(replicas, groups, admission, clock)
    everywhere = ClusterMarkers(config.node_id, markers, image, ask)
    return Coordinators(groups, transactions, admission, markers, producer_ids, settings_of_groups)


def _groups(
    config: BrokerConfig,
    settings_of_groups: SettingsOfGroups,
    replicas: ReplicaManager,
    deadlines: Deadlines,
    clock: Clock,
) -> CoordinatorRuntime[GroupCoordinator]:
    settings = GroupSettings(
        min_session_timeout_ms=config.number("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.number("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.number("group.initial.rebalance.delay.ms"),
        max_size=config.number("group.max.size"),
        offset_metadata_max_size=config.number("offset.metadata.max.bytes"),
        offsets_retention_ms=config.number("offsets.retention.minutes") * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.number("offsets.retention.check.interval.ms"),
        consumer=consumer_settings(config),
    )

    def make(host: Host) -> GroupCoordinator:
        return GroupCoordinator(host, settings, settings_of_groups, _new_member_id, lambda: replicas.image)

    def open_log(partition: int) -> ReplicaLog:
        return ReplicaLog(replicas, OFFSETS_TOPIC, partition, clock)

    runtime = CoordinatorRuntime(OFFSETS_TOPIC, make, open_log, deadlines, clock)
    runtime.commit_timeout_ms = config.number("offsets.commit.timeout.ms")
    return runtime


def consumer_settings(config: BrokerConfig) -> ConsumerGroupSettings:
    """The settings whose names begin with group.consumer."""

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
    """A random UUID as text; the module `uuid` would cost the start some milliseconds."""
    drawn = os.urandom(16).hex()
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"
