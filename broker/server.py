"""The composition root: builds all parts of a node, connects their callbacks, starts and stops them in order.

RULES    1. Startup order: bind, check or format the directories, lock them, load the logs, replay the metadata, join the
            quorum, create the partitions, accept clients. Any failure before that is one sentence, and existing directories
            are unchanged.
         2. A log directory whose disk fails is taken offline. The node ends if it holds the metadata log or is the last one.
         3. Shutdown order: controlled shutdown, with clients served until other brokers lead the partitions; then no new
            requests, finish the I/O, close the logs durably.
         4. Callbacks to upper layers (`on_...`) are connected in `_connect` (one in `_build`, before logs are opened); those
            between the parts of the metadata side in `replication/kraft_node.py`.
         5. A node that is a controller only has no partitions. Logs from the time when it was a broker stay as they are.
NOT HERE Handlers (`api_table.py`), periodic tasks (`scheduled_tasks.py`), settings (`broker_config.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from broker.api_table import client_apis, controller_apis
from broker.config.broker_config import BrokerConfig, ConfigError, Endpoint
from broker.config.security_configs import inter_broker_credentials
from broker.coordinators.factory import DeliverySupport, coordinators
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.local_requests import LocalRequests, to_all_brokers
from broker.handlers.records.log_dirs import LogDirsHandler
from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.throttling import Throttling
from broker.io.io_thread_pool import IoThreadPool
from broker.network.descriptor_share import DescriptorShare
from broker.network.listener import Listener
from broker.network.page_cache_prefetch import PageCachePrefetcher
from broker.network.peer import ClientContext, PeerConnections, peer_login
from broker.node.disk_full_policy import DiskFullPolicy
from broker.node.dynamic_config_applier import DynamicConfigApplier
from broker.node.key_index import KeyIndex
from broker.node.kraft_runtime import KraftRuntime, RuntimeDependencies
from broker.node.log_dir_startup import describe_start_error, open_log_dirs
from broker.node.node_metrics import MeteredParts, NodeMetrics
from broker.node.sasl_authentication import SaslAuthentication
from broker.node.scheduled_tasks import ScheduledTasks
from broker.node.tls_reloader import TlsReloader
from broker.peers.alter_partition_manager import AlterPartitionManager
from broker.peers.assignments_manager import AssignmentsManager
from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.endpoints import (
    AdvertisedEndpoints,
    advertised_endpoint,
    controller_endpoints,
    inter_broker_address,
    quorum_address,
)
from broker.peers.quorum_config import load_quorum_config
from broker.peers.replica_fetchers import ReplicaFetcherManager
from broker.process.event_loop import close_loop, new_loop, on_stop_signals
from broker.process.frozen_objects import FrozenObjects, start_collecting
from broker.process.readiness import announce_ready
from broker.process.resource_limits import (
    MAX_OPEN_FILES,
    RESERVED_DESCRIPTORS,
    allocate_descriptors,
    grow_descriptor_table,
    memory_bytes,
    raise_descriptor_limit,
)
from broker.process.sd_notify import notify_recovered, notify_stopping
from broker.process.timer import LoopTimer, SystemClock
from broker.process.watchdog import Watchdog
from broker.quotas.connection_quotas import ConnectionQuotas
from broker.security.authorizer import AllowAll, Authorizer
from broker.security.node_tls import NodeTls
from broker.security.standard_authorizer import StandardAuthorizer
from broker.telemetry.clients.received_metrics import ClientMetricsStore
from protocol.errors import KafkaError
from protocol.messages.quorum import BrokerRegistrationRequest
from replication.metadata.image import Endpoint as RegisteredEndpoint
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.metadata.image_records import stored_endpoints
from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.formatting import FormatOptions
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import ReplayedMetadata
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.metadata_log.node_identity import UnusableDirectory
from replication.partition.compactor import Compactor
from replication.partition.follower_log import FollowerLog
from replication.partition.log_dir_moves import LogDirMoves
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.timer_queue import TimerQueue
from storage.config.log_config import log_config
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk, StorageError
from storage.io.file_lock import FileLock

_log = logging.getLogger("barnabas")

_SWITCH_S = 0.0005
"""The interpreter's switch interval; Python's default of 5 ms would show in every latency percentile."""
_PARTITIONS_PER_FREEZE = 1024
_OPEN_LOGS_PER_FREEZE = 128
"""So few that opening them makes less than one garbage collection due."""

_OFFLINE = "log directory %s is offline: %s"
_MAX_LISTED = 20


class StartError(Exception):
    """The broker cannot start; the message is for the command line."""


def run(config: BrokerConfig, format_options: FormatOptions) -> None:
    """Runs one node until a signal of `STOP_SIGNALS`; `format_options` applies to empty directories.

    Raises:
        StartError: it cannot start, or its metadata log failed later.
    """
    sys.setswitchinterval(_SWITCH_S)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    server = Server(config, loop, format_options)

    def ready() -> None:
        listener = (server.listeners or server.controller_listeners)[0]
        announce_ready(loop, listener.host, listener.port, config.node_id)
        start_collecting()  # `barnabas serve` has disabled it

    loop.set_exception_handler(server.on_fault)
    on_stop_signals(loop, server.stop)
    try:
        server.start(ready)
        loop.run_forever()
        server.close()
    except StorageError as error:  # of the metadata log, while it is closed; the next start recovers it
        raise StartError(f"the metadata log was not closed: {error}") from None
    finally:
        server.release()
        close_loop(loop)
    if server.failure is not None:
        raise StartError(server.failure)


def _bind_error(endpoint: Endpoint, error: OSError, which: str) -> StartError:
    return StartError(
        f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror or error}; choose another address with {which}"
    )


class Server:
    """One node: broker, controller or both."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, format_options: FormatOptions) -> None:
        self._config = config
        self._format_options = format_options
        self._quorum_config = load_quorum_config(config)
        self._descriptor_limits = allocate_descriptors(raise_descriptor_limit(), config.number(MAX_OPEN_FILES))
        self._acls = StandardAuthorizer(config.super_users, allows_without_acl=config.allows_without_acl)
        self._authorizer: Authorizer = self._acls if config.value("authorizer.class.name") else AllowAll()
        self._loop = loop
        self._tls = NodeTls(config)
        self._disk = Disk()
        self._clock = SystemClock()
        self._timers = TimerQueue()
        self._timer = LoopTimer(loop, self._timers)
        self._io = IoThreadPool(loop, self._disk)
        self._throttling = Throttling(config.quota_windows(), self._io)
        self._dependencies = RuntimeDependencies(loop, self._disk, self._io, self._timers, self._clock)
        self._watchdog = Watchdog(loop)
        self._purgatory = Purgatory(self._timers)
        self._client_metrics = ClientMetricsStore()
        self._sasl = SaslAuthentication(
            config, lambda: self._publisher.image, self._timers, self._clock, loop.call_soon_threadsafe
        )
        self._metrics = NodeMetrics(config, self._clock)
        self._locks: list[FileLock] = []
        self._is_stopping = self._is_shut_down = False
        self._is_broker = "broker" in config.roles
        self._frozen_partitions = FrozenObjects(_PARTITIONS_PER_FREEZE)
        self.listeners: list[Listener] = []
        self.controller_listeners: list[Listener] = []
        self.failure: str | None = None
        """Why the node ended by itself."""

    # ------------------------------------------------------------ starting
    def start(self, ready: Callable[[], None]) -> None:
        """Builds and starts all parts; `ready` is called on the loop when the node accepts requests.

        Raises:
            StartError: the node cannot start.
        """
        self._ready = ready
        try:
            self._dispatcher = Dispatcher(self._watchdog, self._metrics.requests)
            self._controller_dispatcher = Dispatcher(self._watchdog, self._metrics.controller_requests)
            self._bind(self._config.listeners, self._dispatcher, self.listeners)
            self._bind(self._config.controller_listeners, self._controller_dispatcher, self.controller_listeners)
            self._bind_metrics_page()
            endpoints = controller_endpoints(self._config, self.controller_listeners)
            self._log_dirs = open_log_dirs(
                self._config,
                self._disk,
                self._quorum_config,
                self._format_options,
                quorum_address(endpoints),
                self._locks,
                self._clock.wall_ms(),
            )
            self._build(endpoints)
            self._build_broker()
            self._connect()
            self._build_apis()
            self._start_roles()
        except StorageError as error:
            raise StartError(describe_start_error(error)) from None
        except (ConfigError, UnusableDirectory, UnreadableMetadata) as error:
            raise StartError(str(error)) from None
        except KafkaError as error:
            raise StartError(error.message or error.code.name) from None

    def _bind(self, endpoints: list[Endpoint], dispatcher: Dispatcher, listeners: list[Listener]) -> None:
        settings, counts = self._config.socket_settings(), self._sasl.metrics
        quotas = ConnectionQuotas.of(self._config, are_brokers=listeners is self.listeners)
        for endpoint in endpoints:
            tls = self._tls.of(endpoint.name)
            try:
                login = self._sasl.of_listener(endpoint.name, dispatcher)
                listeners.append(Listener(self._loop, *endpoint, dispatcher, settings, tls, login, quotas, counts))
            except OSError as error:
                raise _bind_error(endpoint, error, "--listen or the setting listeners") from None

    def _bind_metrics_page(self) -> None:
        try:
            self._metrics.bind()
        except OSError as error:
            endpoint = self._config.metrics_listener
            assert endpoint is not None, "it was bound"
            raise _bind_error(endpoint, error, "--metrics or the setting barnabas.metrics.listener") from None

    def _build(self, endpoints: tuple[RegisteredEndpoint, ...]) -> None:
        config, (identity, replayed) = self._config, self._log_dirs
        self._log_manager = LogManager(
            self._disk,
            identity.directory_ids,
            log_config({}, config.given),
            random_bytes=secrets.token_bytes,
            failed=identity.failed,
            locks=self._locks,
            max_open_files=self._descriptor_limits.files,
            new_lock=threading.Lock,
        )
        self._log_manager.commit_logs.file_bytes = config.number("barnabas.commitlog.file.bytes")
        handles = self._log_manager.file_handles
        handles.on_eviction_needed = partial(self._loop.call_soon_threadsafe, handles.close_surplus)
        self._log_manager.load(partial(_id_of, replayed))
        for log in self._log_manager.recover():
            notify_recovered(log.name)
        grow_descriptor_table(min(len(self._log_manager.logs), self._descriptor_limits.files) + RESERVED_DESCRIPTORS)
        for path, error in self._log_manager.offline.items():
            if path == identity.metadata_directory:
                raise error
            _log.error(_OFFLINE, path, error)
        quorum_config = self._quorum_config
        start = open_metadata_log(
            self._disk,
            self._log_manager.engines.create,
            identity,
            self._io.of_metadata_log,
            config.metadata_log_config(),
            replayed,
            quorum_config.static_voters,
            may_observe=bool(quorum_config.bootstrap),
        )
        self._metadata_log = start.log
        dependencies = self._dependencies._replace(worker=self._io.of_metadata_log)
        self._metadata = KraftRuntime(config, dependencies, quorum_config, identity, start, endpoints, self._tls)
        self._node, self._channel = self._metadata.node, self._metadata.channel
        self._publisher = self._node.publisher

    def _build_broker(self) -> None:
        config = self._config
        self._replicas = ReplicaManager(
            self._log_manager,
            self._io,
            self._purgatory,
            self._publisher.image,
            config.node_id,
            config.given,
            config.number("replica.lag.time.max.ms"),
        )
        self._disk_full_policy = DiskFullPolicy(
            config.node_id, self._metadata_log.directory, self._publisher, self.listeners
        )
        self._lifecycle = BrokerLifecycle(self._channel, self._broker_registration(), self._timers, self._clock, config)
        channel, lifecycle = self._channel, self._lifecycle
        self._assignments_manager = AssignmentsManager(
            channel, lifecycle, self._log_manager, config.node_id, self._timers, self._clock
        )
        self._log_dir_moves = LogDirMoves(self._replicas, self._io, self._timers, self._clock)
        prefetcher = PageCachePrefetcher(self._io, self._replicas.directory_failed, memory_bytes())
        for listener in self.listeners:
            listener.prefetcher = prefetcher
        listeners = self.listeners + self.controller_listeners
        share = DescriptorShare(self._descriptor_limits.connections, listeners)
        for listener in listeners:
            listener.descriptor_share = share
        self._alter_partition_manager = AlterPartitionManager(
            channel, lifecycle, config.node_id, self._timers, self._clock
        )
        self._build_fetchers()
        producer_ids = ProducerIdManager(self._channel, config.node_id, lambda: self._lifecycle.epoch)
        self._broker_peers, self._delivery_peers = (self._broker_connections("request.timeout.ms") for _ in range(2))
        local = LocalRequests(self._dispatcher, config.inter_broker_listener, f"broker-{config.node_id}", self._clock)
        send = to_all_brokers(config.node_id, local, self._delivery_peers.send_request)
        node = config, self._replicas, self._timers, self._clock, producer_ids, self._broker_peers.send_request
        self._coordinators = coordinators(*node, DeliverySupport(self._loop.call_soon, send))
        self._compactor = Compactor(self._replicas, [], config.cleaner_settings().resources, self._clock.wall_ms)
        self._key_index = KeyIndex(self._dependencies, self._replicas, self._authorizer)
        snapshots = MetadataSnapshots(self._disk, self._io, self._metadata_log, config.snapshot_settings())
        self._scheduled_tasks = ScheduledTasks(
            self._dependencies, config, self._replicas, self._publisher, snapshots, self._compactor, self._key_index
        )
        self._tls_reloader = TlsReloader(self._dependencies, self._tls)
        self._config_applier = DynamicConfigApplier(
            self._dependencies,
            config,
            self.listeners + self.controller_listeners,
            self._replicas,
            self._lifecycle,
            self._fetchers,
            self._log_dir_moves,
            self._compactor,
            self._scheduled_tasks,
            self._coordinators,
            self._tls_reloader,
        )

    def _broker_connections(self, timeout: str) -> PeerConnections:
        """Connections to the other brokers; `timeout` is the setting of the request timeout."""
        config = self._config
        login = peer_login(inter_broker_credentials(config)) if config.listeners else None
        tls = self._tls.of(config.inter_broker_listener)
        name, timeout_ms = f"broker-{config.node_id}", config.number(timeout)
        caller = ClientContext(self._loop, name, self._timers, self._clock.mono_ms, timeout_ms, tls, login)
        listener = config.inter_broker_listener
        return PeerConnections(caller, lambda node_id: inter_broker_address(self._publisher.image, node_id, listener))

    def _build_fetchers(self) -> None:
        connect = partial(self._broker_connections, "replica.socket.timeout.ms")
        follower_log = FollowerLog(self._replicas, self._io)
        self._fetchers = ReplicaFetcherManager(
            self._loop.call_soon, self._config, self._lifecycle, connect, follower_log, self._timers, self._clock
        )

    def _build_apis(self) -> None:
        config = self._config
        wildcards = frozenset(
            e.name for e in config.listeners if e.is_wildcard and e.name not in config.advertised_listeners
        )
        self._controller_dispatcher.serve(controller_apis(config, self._node, self._authorizer, self._timers))
        self._dispatcher.serve(
            client_apis(
                config,
                self._node,
                self._channel,
                self._replicas,
                self._coordinators,
                self._purgatory,
                AdvertisedEndpoints(config.node_id, wildcards),
                self._authorizer,
                LogDirsHandler(self._log_manager, self._replicas, self._log_dir_moves, self._io, self._authorizer),
                self._client_metrics,
                BrokerConfigValidator(config, self._tls, self._tls_reloader.run),
                self._key_index.search,
            )
        )

    def _broker_registration(self) -> BrokerRegistrationRequest:
        rack = self._config.value("broker.rack")
        endpoints = tuple(advertised_endpoint(self._config, listener) for listener in self.listeners)
        return BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=self._publisher.image.cluster_id,
            incarnation_id=self._metadata.incarnation_id,
            listeners=stored_endpoints(endpoints),
            features=[],
            rack=rack if isinstance(rack, str) else None,
            log_dirs=[log_dir.directory_id for log_dir in self._log_manager.directories.values()],
            previous_broker_epoch=self._log_manager.previous_broker_epoch,
        )

    def _connect(self) -> None:
        """Connects the callbacks: which part notifies which (rule 4)."""
        node, replicas, lifecycle, policy = self._node, self._replicas, self._lifecycle, self._disk_full_policy
        node.log.on_failed = lambda error: self._fail(f"the metadata log failed: {error}")
        node.log.call_soon = node.publisher.call_soon = self._loop.call_soon
        node.controller.on_failed = self._fail
        node.quorum.on_leader_changed = self._channel.leader_changed
        node.publisher.on_image = self._on_image
        node.publisher.on_published = self._on_published
        replicas.on_directory_failed = self._on_directory_failed
        replicas.on_isr_proposed = self._alter_partition_manager.submit
        replicas.on_partition_changed = self._update_fetcher
        replicas.on_log_opened = FrozenObjects(_OPEN_LOGS_PER_FREEZE).grow
        self._log_dir_moves.on_moved = self._assignments_manager.assign
        self._purgatory.on_wake = partial(self._loop.call_soon, self._purgatory.drain)
        self._io.on_space_change = self._on_space_changed
        policy.on_metadata_log_full = self._metadata.resign_if_leader
        if self._is_broker:
            policy.on_change = lifecycle.heartbeat_now
        lifecycle.has_space = policy.has_space
        lifecycle.cordoned = self._config_applier.cordoned_ids
        lifecycle.on_fenced_for_full_disk = policy.set_fenced
        lifecycle.on_active = self._on_active
        lifecycle.on_failed = self._fail

    def _start_roles(self) -> None:
        """Starts the controller, and registers the broker."""
        node = self._node, self._metadata.raft_traffic, self._replicas, self._purgatory, self._coordinators, self._io
        clients = self._sasl.metrics, self._throttling.quotas, self._client_metrics, self.listeners
        parts = MeteredParts(*node, self._watchdog.stalls, *clients, self._broker_peers.send_request, self._key_index)
        self._metrics.start(self._loop, parts)
        for listener in self.controller_listeners:
            listener.start()
            _log.info("the controller listens on %s:%d", listener.host, listener.port)
        self._node.start()
        if self._is_broker:
            self._lifecycle.start()
        else:
            self._on_active()

    def _on_active(self) -> None:
        """The broker is active in the published image, or this node is no broker: accepts clients."""
        self._publisher.start()
        if self._is_broker:
            self._take_over_logs()
        for listener in self.listeners:
            listener.start()
        self._scheduled_tasks.start(self.listeners + self.controller_listeners)
        self._metrics.is_started = True
        self._ready()

    def _take_over_logs(self) -> None:
        """The partitions of this broker exist: reports the other logs and the directories, and resumes moves."""
        strays = self._replicas.rename_strays()
        if strays:
            _log.warning(
                "took strays out of service, which the metadata do not assign to this node: %s", ", ".join(strays)
            )
        offline = self._replicas.offline_partitions
        if offline:
            names = ", ".join(offline[:_MAX_LISTED]) + (", …" if len(offline) > _MAX_LISTED else "")
            _log.error("%d partitions are in log directories that this node does not have: %s", len(offline), names)
        self._assignments_manager.reconcile_now(self._replicas.partitions.values())
        self._log_dir_moves.resume()

    # ------------------------------------------------------------ callbacks
    def _on_image(self, image: MetadataImage, changes: MetadataDelta) -> Iterator[None]:
        self._config_applier.image_changed(image, changes)
        if not self._is_broker:  # rule 5
            return
        for _ in self._replicas.apply(image, changes, self._clock.mono_ms()):
            self._frozen_partitions.grow(len(self._replicas.partitions))
            yield
        updated = (self._replicas.partitions.get(key) for key in _keys_of(image, changes))
        yield from self._assignments_manager.reconcile(
            [partition for partition in updated if partition is not None], image
        )
        self._coordinators.on_metadata_update(changes, image, self._config.node_id)

    def _on_published(self, image: MetadataImage) -> None:
        self._acls.update(image.acls)
        self._dispatcher.throttling = self._throttling.updated(image)
        for listener in self.listeners + self.controller_listeners:
            listener.quotas.update_addresses(image.quotas)
        if "controller" in self._config.roles:
            self._metadata.registration.image_published(image)
        if self._is_broker:
            self._lifecycle.image_published(image)

    def _on_space_changed(self, directory: str, has_space: bool) -> None:  # noqa: FBT001
        self._replicas.on_space_changed(directory, has_space)
        self._disk_full_policy.space_changed(directory, has_space)

    def _update_fetcher(self, partition: Partition) -> None:
        if self._replicas.partitions.get(partition.key) is partition:
            self._fetchers.follow(partition)
        else:
            self._fetchers.forget(partition)

    def _on_directory_failed(self, directory: str, error: StorageError) -> None:
        _log.error(_OFFLINE, directory, error)
        self._log_manager.go_offline(directory, error)
        if not self._log_manager.directories:
            self._fail(f"no log directory is left: {error}")
        elif directory == self._metadata_log.directory:
            self._fail(f"the log directory of the metadata is offline: {error}")
        elif not self._is_stopping:  # otherwise the next start reports it
            self._lifecycle.directory_failed(self._log_manager.directory_ids[directory])

    def on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ends the node after an unexpected exception in a callback: its state may be inconsistent."""
        _log.critical(
            "unexpected exception in a callback: %s", context.get("message"), exc_info=context.get("exception")
        )
        self._fail("internal error; the stack trace is in the log")

    def _fail(self, sentence: str) -> None:
        if self.failure is None:  # later failures follow from the first one
            self.failure = sentence
            self._loop.stop()

    # ------------------------------------------------------------ stopping
    def stop(self) -> None:
        """Starts the controlled shutdown, unless the settings disable it; a second call ends it immediately."""
        if self._is_stopping:
            self._shut_down()
            return
        self._is_stopping = True
        self._metrics.is_started = False
        _log.info("shutting down")
        notify_stopping()
        self._io.stop_waiting_for_space()
        if self._is_broker and self._config.value("controlled.shutdown.enable"):
            self._lifecycle.begin_controlled_shutdown().then(lambda _: self._shut_down())
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        """The controlled shutdown is over: closes all connections and resigns as controller."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._scheduled_tasks.stop()
        self._compactor.stop()
        self._log_dir_moves.is_stopped = True
        self._coordinators.close()
        self._fetchers.close()
        for connections in (self._delivery_peers, self._broker_peers):
            connections.close()
        for listener in self.listeners:
            listener.close()
        self._metadata.shut_down().then(lambda _: self._loop.stop())

    def _close_listeners(self) -> None:
        for listener in self.listeners + self.controller_listeners:
            listener.close()
        self._metrics.close()

    def close(self) -> None:
        """After the loop has stopped: finishes the I/O and closes the logs durably."""
        self._close_listeners()
        self._watchdog.stop()
        if self.failure is not None:
            return
        self._config_applier.stop_cleaners()
        self._key_index.stop()
        self._tls_reloader.stop()
        self._timer.stop()
        if not self._io.finish() and self.failure is None:
            self.failure = "the I/O did not end: the logs are not closed, and the next start recovers them"
        if self.failure is None:
            self._metadata_log.close()
            self._log_manager.shutdown(self._lifecycle.epoch)

    def release(self) -> None:
        """Releases sockets and locks, also after a failed start."""
        self._close_listeners()
        for lock in self._locks:
            lock.release()


def _id_of(replayed: ReplayedMetadata | None, topic: str) -> bytes | None:
    """The current id of the topic with this name."""
    known = None if replayed is None else replayed.image.topics_by_name.get(topic)
    return None if known is None else known.topic_id


def _keys_of(image: MetadataImage, changes: MetadataDelta) -> Iterator[tuple[str, int]]:
    """The changed partitions."""
    for topic_id, indexes in changes.partitions.items():
        for index in indexes:
            yield image.topics_by_id[topic_id].name, index
