"""The composition root: makes all parts of one node, wires their news, starts and stops them in order.

RULES    1. The order of starting: bind, know or format the directories, lock them, find the logs, replay the metadata,
            lead it, make the partitions, answer. Whatever fails before the node answers is one sentence, and
            nothing of an existing directory is changed by it.
         2. A log directory whose disk has failed is done without, and said so; the one that holds the metadata log ends the
            node, and so does the last one.
         3. The order of stopping: no new requests, tell the controller, finish the slow work, close the logs durably.
         4. News from below travels through callbacks that are set here and nowhere else.
NOT HERE Handlers (`apis.py`), recurring work (`housekeeping.py`), settings (`config.py`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from broker.addresses import Addresses
from broker.apis import client_apis, controller_apis
from broker.config import BrokerConfig, Endpoint
from broker.coordinators.assembly import coordinators
from broker.coordinators.producer_ids import ProducerIds
from broker.descriptors import OTHERS, SETTING, make_room, raise_limit, share_out
from broker.directory_requests import DirectoryRequests
from broker.dynamic_settings import BrokerRules
from broker.handlers.dispatch import Dispatcher
from broker.handlers.log_dirs import LogDirsHandler
from broker.housekeeping import Housekeeping
from broker.isr_requests import IsrRequests
from broker.network.cold import Warmer
from broker.network.listener import Listener
from broker.reconfiguration import Reconfiguration
from broker.security.authorizer import AllowAll, Authorizer
from broker.telemetry.page import MetricsPage
from broker.telemetry.received import ReceivedMetrics
from broker.timer import LoopTimer, SystemClock
from broker.watchdog import Watchdog
from broker.workers import ThreadWorker
from protocol.errors import KafkaError
from replication.compactor import Compactor
from replication.controller.brokers import Registration
from replication.controller.controller import Controller
from replication.controller.environment import Environment
from replication.controller.sessions import Sessions
from replication.deadlines import Deadlines
from replication.formatting import (
    ControllerEndpoint,
    Identity,
    UnusableDirectory,
    format_directories,
    identify,
    new_uuid,
)
from replication.image import Changes, MetadataImage
from replication.image import Endpoint as RegisteredEndpoint
from replication.metadata_log import open_metadata_log
from replication.metadata_loss import refuse_a_loss
from replication.metadata_records import UnreadableMetadata
from replication.metadata_replay import Replayed, read_metadata
from replication.metadata_snapshots import MetadataSnapshots
from replication.moves import Moves
from replication.purgatory import Purgatory
from replication.replica_manager import ReplicaManager
from storage.directory_locks import lock_directories
from storage.disk import Disk, Lock, StorageError
from storage.log_config import log_config
from storage.log_manager import LogManager

_log = logging.getLogger("barnabas")

_PLAINTEXT = 0
_CONTROLLER_PORT = 9093
_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while the loop wants it; Python's 5 ms would be felt in every tail."""

_YOUNG = 10_000
"""So many new objects make the collector look; Python's 700 has it look dozens of times at one large request."""
_FREEZE_EVERY = 1024
"""Partitions that come, change or go: what is there then is kept from the collector, or it would stand still for all."""


_OFFLINE = "log directory %s is offline: %s"
_NAMED = 20


class StartError(Exception):
    """The broker cannot start; the message is a sentence for the command line."""


def run(config: BrokerConfig) -> None:
    """Run one node until SIGTERM or SIGINT.

    Raises:
        StartError: it cannot start, or its metadata log failed later on.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.disable()  # making the parts drops nothing that a collection could find; `ready` turns it on
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    server = Server(config, loop)

    def ready() -> None:
        listener = server.listeners[0]
        host = listener.host or "0.0.0.0"  # noqa: S104
        shown = f"[{host}]" if ":" in host else host
        seconds = _process_age_s()
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
        loop.close()
    if server.failure is not None:
        raise StartError(server.failure)


def _taken(endpoint: Endpoint, error: OSError, which: str) -> StartError:
    return StartError(
        f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror or error}; choose another address with {which}"
    )


def _process_age_s() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
    except OSError:  # no Linux
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  # not everywhere
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Server:
    """One node: broker and controller."""

    def __init__(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, authorizer: Authorizer | None = None
    ) -> None:
        self._config = config
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
        self._is_stopping = False
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
            identity, found = self._take_directories()
            self._build(identity, found)
            self._build_broker()
            self._build_apis()
            self._lead(identity)
        except (UnusableDirectory, UnreadableMetadata, StorageError) as error:
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

    def _take_directories(self) -> tuple[Identity, Replayed | None]:
        """Whose they are, and the metadata found in them: what is not understood is refused before anything changes."""
        config, disk = self._config, self._disk
        directories = [os.path.abspath(path) for path in config.log_dirs]
        metadata = os.path.abspath(config.metadata_log_dir)
        identity = identify(disk, directories, node_id=config.node_id, metadata_directory=metadata)
        found = None
        if identity is not None:
            found = read_metadata(disk, identity)
            refuse_a_loss(disk, identity, found)
            identity = identity._replace(failed=self._lock(directories, metadata, identity.failed))
        else:
            self._lock(directories, metadata, {})
        identity = format_directories(
            disk,
            directories,
            node_id=config.node_id,
            identity=identity,
            metadata_directory=metadata,
            cluster_id=None,
            controller=self._controller_address(),
            random_bytes=secrets.token_bytes,
            wall_ms=self._clock.wall_ms(),
        )
        return identity, found

    def _lock(
        self, directories: list[str], metadata: str, failed: Mapping[str, StorageError]
    ) -> Mapping[str, StorageError]:
        """Take the directories, which are made where they are missing; all that have failed by then."""
        lost = dict(failed)
        for path in dict.fromkeys((*directories, metadata)):
            if path in lost:
                continue
            try:
                self._disk.make_dirs(path)
                self._locks += lock_directories(self._disk, [path])
            except StorageError as error:
                if path == metadata or error.is_held or error.is_full:
                    raise
                lost[path] = error
        return lost

    def _build(self, identity: Identity, found: Replayed | None) -> None:
        config = self._config
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
        self._metadata_log = open_metadata_log(
            self._disk, self._log_manager.engine_factory, identity, self._worker, config.metadata_log_config(), found
        )
        self._metadata_log.on_failed = lambda error: self._fail(f"the metadata log failed: {error}")
        sessions = Sessions(self._deadlines, config.number("broker.session.timeout.ms"))
        sessions.on_silence = self._fell_silent
        self._controller = Controller(self._metadata_log, self._environment(), sessions)
        self._controller.soon = self._metadata_log.soon = self._loop.call_soon

    def _build_broker(self) -> None:
        config = self._config
        self._replicas = ReplicaManager(
            self._log_manager,
            self._worker,
            self._purgatory,
            self._controller.image,
            config.node_id,
            config.given,
            config.number("replica.lag.time.max.ms"),
        )
        self._replicas.on_directory_failed = self._directory_failed
        self._worker.on_room = self._replicas.room_changed
        self._directory_requests = DirectoryRequests(self._controller, self._log_manager, config.node_id, self._clock)
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
        self._replicas.on_isr_wanted = IsrRequests(self._controller, config.node_id, self._clock).want
        producer_ids = ProducerIds(self._controller, config.node_id, lambda: self._controller.broker_epoch)
        self._coordinators = coordinators(config, self._replicas, self._deadlines, self._clock, producer_ids)
        self._controller.on_image = self._image_changed
        self._compactor = Compactor(self._replicas, [], config.cleaner_settings().resources, self._clock.wall_ms)
        self._moves.on_moved = self._directory_requests.tell
        self._housekeeping = Housekeeping(
            self._loop,
            config,
            self._log_manager,
            self._replicas,
            self._controller,
            MetadataSnapshots(self._disk, self._worker, self._metadata_log, config.snapshot_settings()),
            self._compactor,
            self._worker,
            self._deadlines,
            self._clock,
        )
        self._reconfiguration = Reconfiguration(
            self._loop,
            config,
            self.listeners + self.controller_listeners,
            self._log_manager,
            self._controller,
            self._moves,
            self._compactor,
            self._housekeeping,
            self._coordinators,
            self._clock,
        )

    def _build_apis(self) -> None:
        config = self._config
        wildcards = frozenset(
            e.name for e in config.listeners if e.is_wildcard and e.name not in config.advertised_listeners
        )
        self._controller_dispatcher.serve(controller_apis(config, self._controller, self._authorizer, self._deadlines))
        self._dispatcher.serve(
            client_apis(
                config,
                self._controller,
                self._replicas,
                self._coordinators,
                self._purgatory,
                Addresses(config.node_id, wildcards),
                self._authorizer,
                LogDirsHandler(self._log_manager, self._replicas, self._moves, self._worker, self._authorizer),
                self._received,
            )
        )

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
            kraft_version=self._metadata_log.kraft_version,
        )

    def _lead(self, identity: Identity) -> None:
        rack = self._config.value("broker.rack")
        registration = Registration(
            broker_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation_id=new_uuid(secrets.token_bytes),
            endpoints=tuple(self._registered(listener) for listener in self.listeners),
            directories=tuple(home.directory_id for home in self._log_manager.directories.values()),
            rack=rack if isinstance(rack, str) else None,
            previous_epoch=self._log_manager.previous_broker_epoch,
            cordoned=self._reconfiguration.cordoned_ids(),
        )
        controller = self._controller_address()
        endpoints = (RegisteredEndpoint(controller.listener, controller.host, controller.port, _PLAINTEXT),)
        self._controller.start(registration, endpoints, wall_ms=self._clock.wall_ms(), ready=self._serve)
        self._controller.await_heartbeats(self._clock.mono_ms())

    def _serve(self) -> None:
        """The metadata are published and the partitions ready: answer clients."""
        strays = self._replicas.set_strays_aside()
        if strays:
            _log.warning("set aside what belongs to no topic of this cluster: %s", ", ".join(strays))
        absent = self._replicas.absent
        if absent:
            names = ", ".join(absent[:_NAMED]) + (", …" if len(absent) > _NAMED else "")
            _log.error("%d partitions lie in log directories that are not here: %s", len(absent), names)
        for _ in self._directory_requests.check(self._replicas.partitions.values(), self._controller.image):
            pass
        self._moves.resume()
        everybody = self.listeners + self.controller_listeners
        for listener in everybody:
            listener.start()
        for listener in self.controller_listeners:
            _log.info("the controller listens on %s:%d", listener.host, listener.port)
        self._housekeeping.start(everybody)
        if self._page is not None:
            self._page.start(self._loop)
        self._ready()

    # ------------------------------------------------------------ addresses
    def _registered(self, listener: Listener) -> RegisteredEndpoint:
        advertised = self._config.advertised_listeners.get(listener.name)
        if advertised is not None:
            port = advertised.port or listener.port
            return RegisteredEndpoint(listener.name, advertised.host, port, _PLAINTEXT)
        bound = Endpoint(listener.name, listener.host, listener.port)
        host = os.uname().nodename if bound.is_wildcard else bound.host
        return RegisteredEndpoint(listener.name, host, listener.port, _PLAINTEXT)

    def _controller_address(self) -> ControllerEndpoint:
        """Where this controller is reached; without a listener, where it would be: a quorum's record needs an address."""
        for listener in self.controller_listeners:
            told = self._registered(listener)
            return ControllerEndpoint(told.listener, told.host, told.port)
        names = self._config.controller_listener_names
        return ControllerEndpoint(names[0] if names else "CONTROLLER", "localhost", _CONTROLLER_PORT)

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
                gc.freeze()
            yield
        made = (self._replicas.partitions.get(key) for key in _keys_of(image, changes))
        yield from self._directory_requests.check([partition for partition in made if partition is not None], image)
        self._coordinators.image_changed(changes, image, self._config.node_id)

    def _fell_silent(self, broker_id: int) -> None:
        _log.warning("broker %d was not heard for too long: it is fenced", broker_id)
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
        self.failure = sentence
        self._loop.stop()

    # ------------------------------------------------------------ stopping
    def stop(self) -> None:
        """Begin a clean shutdown; the loop ends when the controller has noted it."""
        if self._is_stopping:
            return
        self._is_stopping = True
        _log.info("shutting down")
        self._worker.wait_no_longer()
        for listener in self.listeners + self.controller_listeners:
            listener.close()
        if self._page is not None:
            self._page.close()
        self._housekeeping.stop()
        self._compactor.stop()
        self._coordinators.close()
        self._controller.stop(wall_ms=self._clock.wall_ms(), done=self._loop.stop)

    def finish(self) -> None:
        """After the loop has ended: let slow work end, close the logs durably."""
        self._watchdog.stop()
        if self.failure is not None:
            return
        self._reconfiguration.stop_cleaners()
        self._worker.stop()
        self._loop.run_until_complete(asyncio.sleep(0))  # what the threads reported
        self._timer.stop()
        self._metadata_log.close()
        self._log_manager.shutdown(self._controller.broker_epoch)

    def abandon(self) -> None:
        """Let go of what is still held, however far the start came."""
        for listener in self.listeners + self.controller_listeners:
            listener.close()
        if self._page is not None:
            self._page.close()
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
