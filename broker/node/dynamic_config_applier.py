"""Applies the dynamic broker configs to the parts of a running node (KIP-226).

RULES    1. Precedence: the broker's own dynamic config, the cluster-wide default, the settings file, the built-in default.
         2. They apply before the first partition is created, and after every change in the metadata.
         3. Defaults of topics are not applied here: logs get them from the image
            (`replication/partition/replica_manager.py`).
         4. Limits of connections that are invalid together, or name a host that this node cannot resolve, are not applied: the
            previous ones stay, with one log line. So do settings of compaction that are invalid together. A change that was
            sent to a controller is in the metadata all the same.
NOT HERE Which settings are dynamic (`dynamic_configs.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.config.broker_config import BrokerConfig, CleanerSettings, ConfigError
from broker.config.config_rules import find_cleaner_conflict
from broker.config.connection_configs import connection_limits
from broker.config.dynamic_configs import MOVE_RATE, apply_dynamic_configs
from broker.coordinators.factory import Coordinators, consumer_settings
from broker.io.compaction_process import CleanerProcess
from broker.network.listener import Listener
from broker.node.kraft_runtime import RuntimeDependencies
from broker.node.scheduled_tasks import ScheduledTasks
from broker.node.tls_reloader import TlsReloader
from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.replica_fetchers import ReplicaFetcherManager
from replication.metadata.image import MetadataDelta, MetadataImage, ResourceType
from replication.partition.compactor import Compactor
from replication.partition.log_dir_moves import LogDirMoves
from replication.partition.replica_manager import ReplicaManager
from replication.partition.replication_quota import FOLLOWER, LEADER, rate_setting

_log = logging.getLogger("barnabas.config")


@dataclass(eq=False)
class DynamicConfigApplier:
    """The parts with dynamic settings."""

    _dependencies: RuntimeDependencies
    _static_config: BrokerConfig
    _listeners: Sequence[Listener]
    _replicas: ReplicaManager
    _lifecycle: BrokerLifecycle
    _fetchers: ReplicaFetcherManager
    _moves: LogDirMoves
    _compactor: Compactor
    _scheduled_tasks: ScheduledTasks
    _coordinators: Coordinators
    _tls_reloader: TlsReloader
    _cleaners: list[CleanerProcess] = field(default_factory=list, init=False)
    _cleaner_settings: CleanerSettings | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._apply(self._replicas.image)

    def image_changed(self, image: MetadataImage, changes: MetadataDelta) -> None:
        """Applies the new configs, if they changed."""
        if any(kind == ResourceType.BROKER for kind, _ in changes.configs):
            cordoned = self._replicas.log_manager.placement.cordoned
            self._apply(image)
            if self._replicas.log_manager.placement.cordoned != cordoned:
                self._lifecycle.heartbeat_now()

    def cordoned_ids(self) -> tuple[bytes, ...]:
        """The ids of the cordoned log directories, which take no new replicas (KIP-1066)."""
        manager = self._replicas.log_manager
        cordoned = manager.placement.cordoned
        return tuple(log_dir.directory_id for path, log_dir in manager.directories.items() if path in cordoned)

    def stop_cleaners(self) -> None:
        """Stops all compaction."""
        for cleaner in self._cleaners:
            cleaner.stop()

    def _apply(self, image: MetadataImage) -> None:
        config = self._static_config
        for name in ("", str(config.node_id)):  # one after the other: an own setting that is ignored hides no default
            config = apply_dynamic_configs(config, image.own_broker_config(name))
        for listener in self._listeners:
            listener.settings = config.socket_settings()
        self._apply_limits(config)
        self._fetchers.resize(config.number("num.replica.fetchers"))
        manager = self._replicas.log_manager
        manager.producer_expiration_ms = config.number("producer.id.expiration.ms")
        manager.deletion_delay_ms = config.number("log.segment.delete.delay.ms")
        manager.placement.cordoned = frozenset(os.path.abspath(path) for path in config.cordoned_log_dirs())
        mono_ms = self._dependencies.clock.mono_ms()
        for throttle, setting in (
            (self._moves.rate_limiter, MOVE_RATE),
            (self._replicas.leader_quota, rate_setting(LEADER)),
            (self._replicas.follower_quota, rate_setting(FOLLOWER)),
        ):
            throttle.set_rate(float(config.given.get(setting, "inf")), mono_ms)
        self._scheduled_tasks.reconfigure(config)
        self._coordinators.group_config_manager.broker = consumer_settings(config)
        self._coordinators.verification.is_enabled = bool(config.value("transaction.partition.verification.enable"))
        self._tls_reloader.configure(config)
        self._apply_cleaner_settings(config)

    def _apply_limits(self, config: BrokerConfig) -> None:
        try:
            limits = connection_limits(config)
        except ConfigError as error:
            _log.error("the dynamic limits of connections have no effect: %s", error)
            return
        for quotas in {listener.quotas for listener in self._listeners}:
            quotas.update(limits)

    def _apply_cleaner_settings(self, config: BrokerConfig) -> None:
        conflict = find_cleaner_conflict(config)
        if conflict is None:
            self._restart_cleaners(config.cleaner_settings())
            return
        _log.error("the dynamic settings of compaction have no effect: %s", conflict)
        if self._cleaner_settings is None:
            self._restart_cleaners(self._static_config.cleaner_settings())

    def _restart_cleaners(self, settings: CleanerSettings) -> None:
        """Restarts running compactions: with the old throttle they might take too long."""
        if settings == self._cleaner_settings:
            return
        self._cleaner_settings = settings
        self.stop_cleaners()
        loop = self._dependencies.loop
        self._cleaners = [CleanerProcess(loop, settings.bytes_per_second) for _ in range(settings.threads)]
        self._compactor.set_cleaners(self._cleaners, settings.resources)
        self._compactor.check()
