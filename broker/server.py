"""The composition root: makes all parts of one node, wires their news, starts and stops them in order.

RULES    1. The order of starting: bind, know or format the directories, lock them, find the logs, replay the metadata,
            lead it, make the partitions, answer. Whatever fails before the node answers is one sentence, and
            nothing of an existing directory is changed by it.
         2. A log directory whose disk has failed is done without, and said so; the one that holds the metadata log ends the
            node, and so does the last one.
         3. The order of stopping: tell the controller, and serve until it says that nobody needs this broker; no new requests,
            finish the slow work, close the logs durably.
         4. News from below travels through callbacks that are set here and nowhere else.
NOT HERE Handlers (`api_table.py`), recurring work (`scheduled_tasks.py`), settings (`broker_config.py`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from broker.api_table import client_apis, controller_apis
from broker.config.broker_config import BrokerConfig, ConfigError, Endpoint
from broker.coordinators.factory import coordinators
from broker.coordinators.transactions.producer_id_manager import ProducerIds
from broker.handlers.records.log_dirs import LogDirsHandler
from broker.handlers.request_dispatcher import Dispatcher
from broker.io.io_thread_pool import ThreadWorker
from broker.network.listener import Listener
from broker.network.page_cache_prefetch import Warmer
from broker.network.peer import Caller
from broker.node.disk_full_policy import FullDisks
from broker.node.dynamic_config_applier import Reconfiguration
from broker.node.format_options import Founding
from broker.node.kraft_runtime import Around, MetadataPart
from broker.node.log_dir_startup import take_directories
from broker.node.scheduled_tasks import Housekeeping
from broker.peers.alter_partition_manager import IsrRequests
from broker.peers.assignments_manager import DirectoryRequests
from broker.peers.broker_lifecycle import BrokerLife
from broker.peers.broker_peers import Brokers
from broker.peers.endpoints import Addresses
from broker.peers.local_endpoints import own_controller, registered
from broker.peers.quorum_config import quorum_places
from broker.peers.replica_fetchers import Fetchers
from broker.process.event_loop import end_tasks, new_loop, process_age_s
from broker.process.file_limits import OTHERS, SETTING, make_room, raise_limit, share_out
from broker.process.timer import LoopTimer, SystemClock
from broker.process.watchdog import Watchdog
from broker.security.authorizer import AllowAll, Authorizer
from broker.telemetry.page import MetricsPage
from broker.telemetry.received import ReceivedMetrics
from protocol.errors import KafkaError
from replication.controller.brokers.broker_heartbeat_tracker import Sessions
from replication.controller.brokers.registration import Registration
from replication.metadata.image import Changes, MetadataImage
from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.formatting import (
    ControllerEndpoint,
    UnusableDirectory,
)
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import Replayed
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.compactor import Compactor
from replication.partition.follower_log import Following
from replication.partition.log_dir_moves import Moves
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.timer_queue import Deadlines
from storage.config.log_config import log_config
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk, Lock, StorageError

_log = logging.getLogger("barnabas")

_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while the loop wants it; Python's 5 ms would be felt in every tail."""

_YOUNG = 10_000
"""So many new objects make the collector look; Python's 700 has it look dozens of times at one large request."""
_FREEZE_EVERY = 1024
"""Partitions that come, change or go: what is there then is kept from the collector, or it would stand still for all."""
_NOT_OLD = 1
"""The collector's generations that hold nearly all garbage and cost a few milliseconds."""


_OFFLINE = "log directory %s is offline: %s"
_NAMED = 20
_LEAVE_MS = 30_000
"""How long the controller may take to find other leaders for what is led here."""
_ALONE_MS = 1_500
"""How long a node that leaves waits for the quorum to elect somebody."""


class StartError(Exception):
    """The broker cannot start; the message is a sentence for the command line."""


def run(config: BrokerConfig, founding: Founding) -> None:
    """Run one node until SIGTERM or SIGINT; `founding` is for directories that are to be formatted.

    Raises:
        StartError: it cannot start, or its metadata log failed later on.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.disable()  # making the parts drops nothing that a collection could find; `ready` turns it on
    loop = new_loop()
    asyncio.set_event_loop(loop)
    server = Server(config, loop, founding=founding)

    def ready() -> None:
        listener = (server.listeners or server.controller_listeners)[0]
        host = listener.host or "0.0.0.0"  # noqa: S104
        shown = f"[{host}]" if ":" in host else host
        seconds = process_age_s()
        sys.stdout.write(f"barnabas ready on {shown}:{listener.port} (node {config.node_id}, {seconds:.2f} s)\n")
        sys.stdout.flush()
        gc.freeze()
        gc.set_threshold(_YOUNG, 10, 10)
        gc.enable()

    loop.set_exception_handler(server.fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    try:
        server.start(ready)
        loop.run_forever()
        server.finish()
    finally:
        server.abandon()
        end_tasks(loop)
        loop.close()
    if server.failure is not None:
        raise StartError(server.failure)


def _taken(endpoint: Endpoint, error: OSError, which: str) -> StartError:
    return StartError(
        f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror or error}; choose another address with {which}"
    )


class Server:
    """One node: broker and controller."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        authorizer: Authorizer | None = None,
        founding: Founding | None = None,
    ) -> None:
        self._config = config
        self._founding = founding or Founding()
        self._places = quorum_places(config)
        self._shares = share_out(raise_limit(), config.number(SETTING))
        self._authorizer = authorizer or AllowAll()
        self._loop = loop
        self._disk = Disk()
        self._clock = SystemClock()
        self._deadlines = Deadlines()
        self._timer = LoopTimer(loop, self._deadlines)
        self._worker = ThreadWorker(loop)
        self._watchdog = Watchdog(loop)
        self._purgatory = Purgatory(self._deadlines)
        self._purgatory.on_wake = self._drain_soon
        self._received = ReceivedMetrics()
        self._page: MetricsPage | None = None
        self._locks: list[Lock] = []
        self._is_stopping = self._has_left = False
        self._followed = 0
        self.listeners: list[Listener] = []
        self.controller_listeners: list[Listener] = []
        self.failure: str | None = None
        """Why the node ended, when nobody asked it to."""

    # ------------------------------------------------------------ starting
    def start(self, ready: Callable[[], None]) -> None:
        """Make everything; `ready` is called on the loop when requests are answered.

        Raises:
            StartError: something keeps the node from starting.
        """
        self._ready = ready
        try:
            self._dispatcher = Dispatcher(self._watchdog)
            self._controller_dispatcher = Dispatcher(self._watchdog)
            self._bind(self._config.listeners, self._dispatcher, self.listeners)
            self._bind(self._config.controller_listeners, self._controller_dispatcher, self.controller_listeners)
            self._bind_page()
            controller = own_controller(self._config, self.controller_listeners)
            self._home = take_directories(
                self._config,
                self._disk,
                self._places,
                self._founding,
                controller,
                self._locks,
                self._clock.wall_ms(),
            )
            self._build(controller)
            self._build_broker()
            self._build_apis()
            self._join()
        except (ConfigError, UnusableDirectory, UnreadableMetadata, StorageError) as error:
            raise StartError(str(error)) from None
        except KafkaError as error:
            raise StartError(error.message or error.code.name) from None

    def _bind(self, endpoints: list[Endpoint], dispatcher: Dispatcher, listeners: list[Listener]) -> None:
        settings = self._config.socket_settings()
        for endpoint in endpoints:
            try:
                listener = Listener(
                    self._loop, endpoint.name, endpoint.host, endpoint.port, dispatcher.dispatch, settings
                )
            except OSError as error:
                raise _taken(endpoint, error, "--listen or the setting listeners") from None
            listeners.append(listener)

    def _bind_page(self) -> None:
        endpoint = self._config.metrics_listener
        if endpoint is not None:
            try:
                self._page = MetricsPage((endpoint.host, endpoint.port), self._received, self._clock.mono_ms)
            except OSError as error:
                raise _taken(endpoint, error, "the setting barnabas.metrics.listener") from None

    def _build(self, controller: ControllerEndpoint) -> None:
        config, (identity, found) = self._config, self._home
        self._log_manager = LogManager(
            self._disk,
            identity.directory_ids,
            log_config({}, config.given),
            random_bytes=secrets.token_bytes,
            failed=identity.failed,
            locks=self._locks,
            most_open_files=self._shares.files,
            new_lock=threading.Lock,
        )
        self._log_manager.open_files.on_surplus = self._close_surplus_soon
        self._log_manager.load(partial(_id_of, found))
        for _ in self._log_manager.recover():
            pass
        make_room(min(len(self._log_manager.logs), self._shares.files) + OTHERS)
        for path, error in self._log_manager.offline.items():
            if path == identity.metadata_directory:
                raise error
            _log.error(_OFFLINE, path, error)
        places = self._places
        start = open_metadata_log(
            self._disk,
            self._log_manager.engine_factory,
            identity,
            self._worker,
            config.metadata_log_config(),
            found,
            places.static_voters,
            may_observe=bool(places.bootstrap),
        )
        self._metadata_log = start.log
        self._metadata_log.on_failed = lambda error: self._fail(f"the metadata log failed: {error}")
        sessions = Sessions(self._deadlines, config.number("broker.session.timeout.ms"))
        sessions.on_silence = self._fell_silent
        around = Around(self._loop, self._disk, self._worker, self._deadlines, self._clock)
        self._metadata = MetadataPart(config, around, places, identity, start, sessions, controller)
        self._node, self._channel = self._metadata.node, self._metadata.channel
        self._controller, self._publisher = self._node.controller, self._node.publisher
        self._controller.on_failed = self._fail

    def _build_broker(self) -> None:
        config = self._config
        self._replicas = ReplicaManager(
            self._log_manager,
            self._worker,
            self._purgatory,
            self._publisher.image,
            config.node_id,
            config.given,
            config.number("replica.lag.time.max.ms"),
        )
        self._replicas.on_directory_failed = self._directory_failed
        self._full_disks = FullDisks(config.node_id, self._metadata_log.directory, self._publisher, self.listeners)
        self._worker.on_room = self._room_changed
        self._life = BrokerLife(
            self._channel,
            self._registration(),
            self._deadlines,
            self._clock,
            config.number("broker.heartbeat.interval.ms"),
            config.number("initial.broker.registration.timeout.ms"),
        )
        channel, life = self._channel, self._life
        self._directory_requests = DirectoryRequests(channel, life, self._log_manager, config.node_id, self._clock)
        self._moves = Moves(
            self._replicas,
            self._log_manager,
            self._worker,
            self._clock.wall_ms,
            self._deadlines,
            self._clock.mono_ms,
        )
        warmer = Warmer(self._worker, self._replicas.directory_failed)
        for listener in self.listeners:
            listener.warmer = warmer
            listener.most_descriptors = self._shares.connections
        self._replicas.on_isr_wanted = IsrRequests(channel, life, config.node_id, self._deadlines, self._clock).want
        self._build_fetchers()
        producer_ids = ProducerIds(self._channel, config.node_id, lambda: self._life.epoch)
        self._brokers = self._connections("request.timeout.ms")
        self._coordinators = coordinators(
            config, self._replicas, self._deadlines, self._clock, producer_ids, self._brokers.ask
        )
        self._publisher.on_image = self._image_changed
        self._publisher.on_published = self._published
        self._compactor = Compactor(self._replicas, [], config.cleaner_settings().resources, self._clock.wall_ms)
        self._moves.on_moved = self._directory_requests.tell
        self._housekeeping = Housekeeping(
            self._loop.call_soon,
            config,
            self._log_manager,
            self._replicas,
            self._publisher,
            MetadataSnapshots(self._disk, self._worker, self._metadata_log, config.snapshot_settings()),
            self._compactor,
            self._worker,
            self._deadlines,
            self._clock,
        )
        self._reconfiguration = self._build_reconfiguration()

    def _build_reconfiguration(self) -> Reconfiguration:
        return Reconfiguration(
            self._loop,
            self._config,
            self.listeners + self.controller_listeners,
            self._log_manager,
            self._replicas,
            self._publisher,
            self._life,
            self._moves,
            self._compactor,
            self._housekeeping,
            self._coordinators,
            self._clock,
        )

    def _connections(self, timeout: str) -> Brokers:
        """To the other brokers; `timeout` is the setting for how long an answer may take."""
        config = self._config
        caller = Caller(
            self._loop, f"broker-{config.node_id}", self._deadlines, self._clock.mono_ms, config.number(timeout)
        )
        return Brokers(caller, lambda: self._publisher.image, config.inter_broker_listener)

    def _build_fetchers(self) -> None:
        config = self._config
        count = config.number("num.replica.fetchers")
        self._leaders = [self._connections("replica.socket.timeout.ms") for _ in range(count)]
        self._fetchers = Fetchers(
            self._loop.call_soon,
            config.node_id,
            lambda: self._life.epoch,
            self._leaders[0].ask,
            Following(self._replicas, self._log_manager, self._worker),
            config.fetch_settings(),
            self._deadlines,
            self._clock,
            [connections.ask for connections in self._leaders[1:]],
        )
        self._replicas.on_following = self._follow

    def _build_apis(self) -> None:
        config = self._config
        wildcards = frozenset(
            e.name for e in config.listeners if e.is_wildcard and e.name not in config.advertised_listeners
        )
        self._controller_dispatcher.serve(controller_apis(config, self._node, self._authorizer, self._deadlines))
        self._dispatcher.serve(
            client_apis(
                config,
                self._node,
                self._channel,
                self._replicas,
                self._coordinators,
                self._purgatory,
                Addresses(config.node_id, wildcards),
                self._authorizer,
                LogDirsHandler(self._log_manager, self._replicas, self._moves, self._worker, self._authorizer),
                self._received,
            )
        )

    def _registration(self) -> Registration:
        rack = self._config.value("broker.rack")
        return Registration(
            broker_id=self._config.node_id,
            cluster_id=self._publisher.image.cluster_id,
            incarnation_id=self._metadata.incarnation_id,
            endpoints=tuple(registered(self._config, listener) for listener in self.listeners),
            directories=tuple(home.directory_id for home in self._log_manager.directories.values()),
            rack=rack if isinstance(rack, str) else None,
            previous_epoch=self._log_manager.previous_broker_epoch,
        )

    def _join(self) -> None:
        """Take part in the quorum, and register this node's broker."""
        self._life.cordoned = self._reconfiguration.cordoned_ids
        self._life.on_active = self._begin
        self._life.on_failed = self._fail
        full_disks = self._full_disks
        self._life.on_aside, self._life.has_room = full_disks.stand_aside, full_disks.has_room
        full_disks.on_deaf = self._metadata.hand_over
        if "broker" in self._config.roles:
            full_disks.on_change = self._life.tell
        for listener in self.controller_listeners:
            listener.start()
            _log.info("the controller listens on %s:%d", listener.host, listener.port)
        self._node.start()
        if "broker" in self._config.roles:
            self._life.start()
        else:
            self._begin()

    def _begin(self) -> None:
        """The broker is active in the published image: make its partitions, and answer clients."""
        self._publisher.begin()
        self._serve()

    def _serve(self) -> None:
        """The metadata are published and the partitions ready: answer clients."""
        strays = self._replicas.set_strays_aside()
        if strays:
            _log.warning("set aside what belongs to no topic of this cluster: %s", ", ".join(strays))
        absent = self._replicas.absent
        if absent:
            names = ", ".join(absent[:_NAMED]) + (", …" if len(absent) > _NAMED else "")
            _log.error("%d partitions lie in log directories that are not here: %s", len(absent), names)
        for _ in self._directory_requests.check(self._replicas.partitions.values(), self._publisher.image):
            pass
        self._moves.resume()
        for listener in self.listeners:
            listener.start()
        self._housekeeping.start(self.listeners + self.controller_listeners)
        if self._page is not None:
            self._page.start(self._loop)
        self._ready()

    # ------------------------------------------------------------ news
    def _close_surplus_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._log_manager.open_files.close_surplus)

    def _drain_soon(self) -> None:
        self._loop.call_soon(self._purgatory.drain)

    def _image_changed(self, image: MetadataImage, changes: Changes) -> Iterator[None]:
        self._reconfiguration.image_changed(image, changes)
        for _ in self._replicas.apply(image, changes, self._clock.mono_ms()):
            self._followed += 1
            if self._followed % _FREEZE_EVERY == 0:
                gc.collect(_NOT_OLD)  # else what is garbage by now would be kept too, for ever
                gc.freeze()
            yield
        made = (self._replicas.partitions.get(key) for key in _keys_of(image, changes))
        yield from self._directory_requests.check([partition for partition in made if partition is not None], image)
        self._coordinators.image_changed(changes, image, self._config.node_id)

    def _published(self, image: MetadataImage) -> None:
        if "controller" in self._config.roles:
            self._metadata.registration.image_published(image)
        if "broker" in self._config.roles:
            self._life.image_published(image)

    def _room_changed(self, directory: str, has_room: bool) -> None:  # noqa: FBT001
        self._replicas.room_changed(directory, has_room)
        self._full_disks.changed(directory, has_room)

    def _follow(self, partition: Partition) -> None:
        if self._replicas.partitions.get(partition.key) is partition:
            self._fetchers.follow(partition)
        else:
            self._fetchers.forget(partition)

    def _fell_silent(self, broker_id: int) -> None:
        self._controller.fence_silent(broker_id, wall_ms=self._clock.wall_ms())

    def _directory_failed(self, directory: str, error: StorageError) -> None:
        _log.error(_OFFLINE, directory, error)
        self._log_manager.go_offline(directory, error)
        if not self._log_manager.directories:
            self._fail(f"no log directory is left: {error}")
        elif directory == self._metadata_log.directory:
            self._fail(f"the log directory of the metadata is offline: {error}")
        elif not self._is_stopping:  # else the next start tells
            self._directory_requests.failed(directory)

    def fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody expected came out of a callback: state cannot be trusted any more, so end."""
        _log.critical("fault in a callback: %s", context.get("message"), exc_info=context.get("exception"))
        self._fail("a fault of the broker itself; the trace is in the log")

    def _fail(self, sentence: str) -> None:
        if self.failure is None:  # else what follows from the first one
            self.failure = sentence
            self._loop.stop()

    # ------------------------------------------------------------ stopping
    def stop(self) -> None:
        """Begin a clean shutdown: clients are served until others lead what was led here. A second wish ends it at once."""
        if self._is_stopping:
            self._leave()
            return
        self._is_stopping = True
        _log.info("shutting down")
        self._worker.wait_no_longer()
        if "broker" in self._config.roles:
            self._life.end(self._leave)
            self._deadlines.schedule(self._clock.mono_ms() + _LEAVE_MS, self._leave)
            self._leave_if_alone()
        else:
            self._leave()

    def _leave_if_alone(self) -> None:
        """Nobody can take over what is led here while the quorum has no leader: it may never have one again."""
        if self._channel.leaderless_ms >= _ALONE_MS:
            _log.warning("no controller is active: leaving without handing over")
            self._leave()
        elif not self._has_left:
            self._deadlines.schedule(self._clock.mono_ms() + _ALONE_MS, self._leave_if_alone)

    def _leave(self) -> None:
        """Nobody needs this broker any more, or nobody answers: say that the quorum is not led here any more, and end."""
        if self._has_left:
            return
        self._has_left = True
        self._housekeeping.stop()
        self._compactor.stop()
        self._coordinators.close()
        self._fetchers.close()
        for connections in self._leaders:
            connections.close()
        self._brokers.close()
        for listener in self.listeners:
            listener.close()
        self._metadata.leave(self._loop.stop)

    def _close_listeners(self) -> None:
        for listener in self.listeners + self.controller_listeners:
            listener.close()
        if self._page is not None:
            self._page.close()

    def finish(self) -> None:
        """After the loop has ended: let slow work end, close the logs durably."""
        self._close_listeners()
        self._watchdog.stop()
        if self.failure is not None:
            return
        self._reconfiguration.stop_cleaners()
        self._worker.stop()
        self._loop.run_until_complete(asyncio.sleep(0))  # what the threads reported
        self._timer.stop()
        self._metadata_log.close()
        self._log_manager.shutdown(self._life.epoch)

    def abandon(self) -> None:
        """Let go of what is still held, however far the start came."""
        self._close_listeners()
        for lock in self._locks:
            lock.release()


def _id_of(found: Replayed | None, topic: str) -> bytes | None:
    """The id of the topic that has this name now."""
    known = None if found is None else found.image.topics_by_name.get(topic)
    return None if known is None else known.topic_id


def _keys_of(image: MetadataImage, changes: Changes) -> Iterator[tuple[str, int]]:
    """The partitions that have changed."""
    for topic_id, indexes in changes.partitions.items():
        for index in indexes:
            yield image.topics_by_id[topic_id].name, index
