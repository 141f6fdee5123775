"""Settings that change while the broker runs: who obeys them is told.

RULES    1. What is in force is the broker's own dynamic setting, else that of all brokers, else the file's, else the default.
         2. It is known before the first partition is made, and told anew with every change of the metadata's settings.
         3. Defaults of topics are not told here: logs get theirs from the image (`replication/partition/replica_manager.py`).
NOT HERE Which settings can change (`dynamic_configs.py`).
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections.abc import Sequence

from broker.config.broker_config import BrokerConfig, CleanerSettings
from broker.config.dynamic_configs import MOVE_RATE, with_changes
from broker.coordinators.factory import Coordinators, consumer_settings
from broker.io.compaction_process import HelperCleaner
from broker.network.listener import Listener
from broker.node.scheduled_tasks import Housekeeping
from broker.peers.broker_lifecycle import BrokerLife
from broker.process.timer import SystemClock
from replication.metadata.image import Changes, MetadataImage, ResourceType
from replication.metadata.metadata_publisher import Publisher
from replication.partition.compactor import Compactor
from replication.partition.log_dir_moves import Moves
from replication.partition.replica_manager import ReplicaManager
from replication.partition.replication_quota import FOLLOWER, LEADER, rate_setting
from storage.directories.log_manager import LogManager


class Reconfiguration:
    """Those who obey settings that can change."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        started_with: BrokerConfig,
        listeners: Sequence[Listener],
        log_manager: LogManager,
        replicas: ReplicaManager,
        publisher: Publisher,
        life: BrokerLife,
        moves: Moves,
        compactor: Compactor,
        housekeeping: Housekeeping,
        coordinators: Coordinators,
        clock: SystemClock,
    ) -> None:
        self._loop = loop
        self._started_with = started_with
        self._listeners = listeners
        self._log_manager = log_manager
        self._replicas = replicas
        self._life = life
        self._moves = moves
        self._compactor = compactor
        self._housekeeping = housekeeping
        self._coordinators = coordinators
        self._clock = clock
        self._cleaners: list[HelperCleaner] = []
        self._cleaner_settings: CleanerSettings | None = None
        self._tell(publisher.image)

    def image_changed(self, image: MetadataImage, changes: Changes) -> None:
        """Settings may have changed."""
        if any(kind == ResourceType.BROKER for kind, _ in changes.configs):
            cordoned = self._log_manager.cordoned
            self._tell(image)
            if self._log_manager.cordoned != cordoned:
                self._life.tell()

    def cordoned_ids(self) -> tuple[bytes, ...]:
        """The log directories that take no new replicas, by their ids."""
        manager = self._log_manager
        return tuple(home.directory_id for path, home in manager.directories.items() if path in manager.cordoned)

    def stop_cleaners(self) -> None:
        """Let nobody compact any more."""
        for cleaner in self._cleaners:
            cleaner.stop()

    def _tell(self, image: MetadataImage) -> None:
        config = with_changes(self._started_with, image.broker_config(self._started_with.node_id))
        for listener in self._listeners:
            listener.settings = config.socket_settings()
        self._log_manager.producer_expiration_ms = config.number("producer.id.expiration.ms")
        self._log_manager.deletion_delay_ms = config.number("log.segment.delete.delay.ms")
        self._log_manager.cordoned = frozenset(os.path.abspath(path) for path in config.cordoned_log_dirs())
        mono_ms = self._clock.mono_ms()
        for throttle, setting in (
            (self._moves.throttle, MOVE_RATE),
            (self._replicas.leader_throttle, rate_setting(LEADER)),
            (self._replicas.follower_throttle, rate_setting(FOLLOWER)),
        ):
            throttle.set_rate(float(config.given.get(setting, "inf")), mono_ms)
        self._housekeeping.reconfigure(config)
        self._coordinators.settings_of_groups.broker = consumer_settings(config)
        self._coordinators.admission.does_verify = bool(config.value("transaction.partition.verification.enable"))
        self._have_compacted(config.cleaner_settings())

    def _have_compacted(self, settings: CleanerSettings) -> None:
        """What is being compacted is begun anew: at the old pace it might take forever."""
        if settings == self._cleaner_settings:
            return
        self._cleaner_settings = settings
        self.stop_cleaners()
        self._cleaners = [HelperCleaner(self._loop, settings.bytes_per_second) for _ in range(settings.threads)]
        self._compactor.use(self._cleaners, settings.resources)
        self._compactor.look()
