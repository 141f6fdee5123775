"""The broker's settings: from files and the command line to one frozen value (design D14).

RULES    1. Names, defaults and accepted values are Kafka's; the tables are `config_definitions.py` and, for topics,
            `storage/config/log_config.py`.
         2. What is given on the command line wins over the file, the file over the defaults.
         3. A bad value stops the start with a sentence that names file, line and what would be accepted;
            an unknown name is a warning, for a client library's setting may stand in a shared file.
NOT HERE Settings changed while running (the metadata log), what a setting does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.ignored_configs import unused_settings
from broker.config.listener_rules import Listening, wrong_listeners
from replication.controller.periodic_tasks import Intervals
from replication.metadata_log.metadata_log_open import METADATA_LOG_CONFIG
from replication.metadata_log.metadata_snapshots import SnapshotSettings
from replication.partition.replica_fetcher import FetchSettings
from replication.partition.replica_selector import SELECTORS, Choose
from replication.raft.replica_state import QuorumTimes
from storage.compaction.cleaner_job import Resources
from storage.config.config_def import MAX_INT, BadSetting, Setting, Value, parse
from storage.config.log_config import LogConfig, log_config

_log = logging.getLogger("barnabas.config")

_SMALLEST_BUFFER_BYTES = 4096
_SMALLEST_MAP_BYTES = 1024 * 1024
_ALL = "*"

QUICK_START = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""What holds when no file is given: one node, as Kafka's own example `server.properties` sets it up."""


class ConfigError(ValueError):
    """Settings that the broker cannot start with; the message is a sentence for the command line."""


class SocketSettings(NamedTuple):
    """The settings of sockets, under Kafka's names."""

    send_buffer_bytes: int = 102_400
    receive_buffer_bytes: int = 102_400
    request_max_bytes: int = 104_857_600
    listen_backlog_size: int = 50
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    connections_max_idle_ms: int = 600_000


class CleanerSettings(NamedTuple):
    """How compaction is done."""

    threads: int
    backoff_ms: int
    bytes_per_second: float
    """Of one thread."""
    resources: Resources
    """Of one thread."""


class Endpoint(NamedTuple):
    """One listener's address; an empty host is every address of this machine."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True)
class BrokerConfig:
    """All settings of one node; `given` holds, as text, what was set and did not come from a default."""

    given: Mapping[str, str]

    def value(self, name: str) -> Value:
        """The parsed value in force of a broker setting."""
        setting = BROKER_SETTINGS[name]
        return parse(setting, self.given.get(name, setting.default))

    def number(self, name: str) -> int:
        """The value of a numeric setting that has a default."""
        value = self.value(name)
        assert isinstance(value, int)
        return value

    @cached_property
    def node_id(self) -> int:
        """The number of this node."""
        text = self.given.get("node.id", self.given.get("broker.id", "1"))
        return int(text)

    @cached_property
    def log_dirs(self) -> list[str]:
        """The log directories."""
        value = self.value("log.dirs") or self.value("log.dir")
        assert isinstance(value, list)
        return value

    @cached_property
    def metadata_log_dir(self) -> str:
        """The directory of the metadata log."""
        value = self.value("metadata.log.dir")
        return value if isinstance(value, str) else self.log_dirs[0]

    @cached_property
    def roles(self) -> frozenset[str]:
        """What this node is: broker, controller or both."""
        value = self.value("process.roles")
        return frozenset(value) if isinstance(value, list) and value else frozenset({"broker", "controller"})

    @cached_property
    def listeners(self) -> list[Endpoint]:
        """The addresses that clients may connect to: those of `listeners` that are not the controller's."""
        return [endpoint for endpoint in self._all_listeners if endpoint.name not in self.controller_listener_names]

    @cached_property
    def controller_listeners(self) -> list[Endpoint]:
        """The addresses that other nodes reach the controller at."""
        return [endpoint for endpoint in self._all_listeners if endpoint.name in self.controller_listener_names]

    @cached_property
    def advertised_listeners(self) -> dict[str, Endpoint]:
        """What clients are told, by listener name, where it was set."""
        value = self.value("advertised.listeners")
        return {} if value is None else {e.name: e for e in _endpoints("advertised.listeners", value)}

    @cached_property
    def controller_listener_names(self) -> list[str]:
        """Names of the controller's listeners."""
        value = self.value("controller.listener.names")
        return value if isinstance(value, list) else []

    @cached_property
    def metrics_listener(self) -> Endpoint | None:
        """Where metrics are shown; None: nowhere."""
        text = self.value("barnabas.metrics.listener")
        return _endpoint("barnabas.metrics.listener", str(text)) if text else None

    @cached_property
    def _all_listeners(self) -> list[Endpoint]:
        return _endpoints("listeners", self.value("listeners"))

    def listening(self) -> Listening:
        """What is said of all listeners together."""
        return Listening(
            self.roles,
            self.listeners,
            self.controller_listeners,
            self.controller_listener_names,
            self.advertised_listeners,
            self.inter_broker_listener,
            bool(self.value("controller.quorum.voters") or self.value("controller.quorum.bootstrap.servers")),
        )

    def socket_settings(self) -> SocketSettings:
        """The settings of sockets."""
        return SocketSettings(
            send_buffer_bytes=self.number("socket.send.buffer.bytes"),
            receive_buffer_bytes=self.number("socket.receive.buffer.bytes"),
            request_max_bytes=self.number("socket.request.max.bytes"),
            listen_backlog_size=self.number("socket.listen.backlog.size"),
            max_connections=self.number("max.connections"),
            max_connections_per_ip=self.number("max.connections.per.ip"),
            connections_max_idle_ms=self.number("connections.max.idle.ms"),
        )

    def cordoned_log_dirs(self) -> list[str]:
        """The log directories that take no new replicas, as `log_dirs` names them."""
        value = self.value("cordoned.log.dirs")
        assert isinstance(value, list)
        return self.log_dirs if value == [_ALL] else value

    @cached_property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        value = self.value("inter.broker.listener.name")
        if isinstance(value, str):
            return value
        return self.listeners[0].name if self.listeners else "PLAINTEXT"

    def fetch_settings(self) -> FetchSettings:
        """How a follower fetches."""
        return FetchSettings(
            wait_max_ms=self.number("replica.fetch.wait.max.ms"),
            min_bytes=self.number("replica.fetch.min.bytes"),
            max_bytes=self.number("replica.fetch.max.bytes"),
            response_max_bytes=self.number("replica.fetch.response.max.bytes"),
            backoff_ms=self.number("replica.fetch.backoff.ms"),
        )

    def read_places(self) -> Choose | None:
        """Who says from which replica a consumer had better read; None: from the leader."""
        return SELECTORS.get(str(self.value("replica.selector.class")))

    @property
    def memory_ratio(self) -> float:
        """So much of the memory may lie behind a record that is read from the leader."""
        value = self.value("barnabas.replica.selector.memory.ratio")
        assert isinstance(value, float)
        return value

    def quorum_times(self) -> QuorumTimes:
        """How long a replica of the metadata log waits."""
        return QuorumTimes(
            election_timeout_ms=self.number("controller.quorum.election.timeout.ms"),
            fetch_timeout_ms=self.number("controller.quorum.fetch.timeout.ms"),
            election_backoff_max_ms=self.number("controller.quorum.election.backoff.max.ms"),
            request_timeout_ms=self.number("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=self.number("controller.quorum.retry.backoff.ms"),
        )

    def controller_intervals(self) -> Intervals:
        """How often the active controller does what nobody asks for."""
        balances = bool(self.value("auto.leader.rebalance.enable"))
        return Intervals(
            balance_ms=self.number("leader.imbalance.check.interval.seconds") * 1000 if balances else None,
            unclean_ms=self.number("unclean.leader.election.interval.ms"),
            sign_ms=self.number("metadata.max.idle.interval.ms") or None,
        )

    def metadata_log_config(self) -> LogConfig:
        """What the metadata log obeys."""
        return replace(
            METADATA_LOG_CONFIG,
            segment_bytes=self.number("metadata.log.segment.bytes"),
            segment_ms=self.number("metadata.log.segment.ms"),
        )

    def cleaner_settings(self) -> CleanerSettings:
        """What compaction may take; without threads it is off."""
        threads = self.number("log.cleaner.threads") if self.value("log.cleaner.enable") else 0
        rate, load_factor = (
            self.value("log.cleaner.io.max.bytes.per.second"),
            self.value("log.cleaner.io.buffer.load.factor"),
        )
        assert isinstance(rate, float)
        assert isinstance(load_factor, float)
        share = max(threads, 1)
        return CleanerSettings(
            threads,
            self.number("log.cleaner.backoff.ms"),
            max(rate / share, 1.0),
            Resources(
                min(self.number("log.cleaner.dedupe.buffer.size") // share, MAX_INT),
                load_factor,
                max(self.number("log.cleaner.io.buffer.size") // share // 2, _SMALLEST_BUFFER_BYTES),
            ),
        )

    def snapshot_settings(self) -> SnapshotSettings:
        """When snapshots of the metadata are taken and for how long they are kept."""
        return SnapshotSettings(
            bytes_between=self.number("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=self.number("metadata.log.max.snapshot.interval.ms"),
            retention_bytes=self.number("metadata.max.retention.bytes"),
            retention_ms=self.number("metadata.max.retention.ms"),
        )


def load_config(
    path: str | None, overrides: Mapping[str, str], listen: str | None = None, *, is_bare: bool = False
) -> BrokerConfig:
    """Read a settings file (None: the quick start's settings) and lay the command line's values over it.

    Args:
        path: of the file.
        overrides: settings by name.
        listen: the address for clients; the controller's listeners stay as they are.
        is_bare: no file does not mean the quick start's settings, but Kafka's defaults.

    Raises:
        ConfigError: a file that cannot be read, a line that is none, a value that is not allowed.
    """
    texts = dict(QUICK_START) if path is None and not is_bare else {}
    origin = dict.fromkeys(texts, "the built-in settings")
    if path is not None:
        for name, text, line in _read_properties(path):
            texts[name], origin[name] = text, f"{path}, line {line}"
    for name, text in overrides.items():
        texts[name], origin[name] = text, "the command line"
    unused = unused_settings()
    for name, text in texts.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is not None:
            _check(setting, text, origin[name])
        elif name not in unused:
            _log.warning("unknown setting %s (%s) is passed over", name, origin[name])
    config = BrokerConfig(texts)
    if listen is not None:
        kept = [
            f"{e.name}://{f'[{e.host}]' if ':' in e.host else e.host}:{e.port}" for e in config.controller_listeners
        ]
        config = BrokerConfig({**texts, "listeners": ",".join([f"PLAINTEXT://{listen}", *kept])})
    found = wrong_listeners(config.listening()) or contradiction(config)
    if found is not None:
        raise ConfigError(found)
    return config


def _check(setting: Setting, text: str, origin: str) -> None:
    try:
        parse(setting, text)
    except BadSetting as error:
        raise ConfigError(f"{origin}: {error}") from None


def contradiction(config: BrokerConfig) -> str | None:
    """What settings cannot mean, or not together, though each is of its kind; in Kafka's words."""
    for look in (
        _look_at_metrics,
        _look_at_rolling,
        _look_at_retention,
        _look_at_the_cleaner,
        _look_at_cordons,
        _look_at_consumer_groups,
    ):
        found = look(config)
        if found is not None:
            return found
    return None


def _look_at_metrics(config: BrokerConfig) -> str | None:
    if config.metrics_listener is not None and config.metrics_listener.name != "HTTP":
        return "barnabas.metrics.listener: it speaks HTTP and nothing else, such as HTTP://127.0.0.1:9464"
    return None


def _look_at_rolling(config: BrokerConfig) -> str | None:
    for name, lowest in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
        value = config.value(name)
        if isinstance(value, int) and value < lowest:
            return f"{name} must be greater than or equal to {lowest}"
    return None


def _look_at_retention(config: BrokerConfig) -> str | None:
    if log_config({}, config.given).retention_ms == 0:
        return "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    return None


def _look_at_the_cleaner(config: BrokerConfig) -> str | None:
    threads, _, _, resources = config.cleaner_settings()
    if threads and resources.memory_bytes <= _SMALLEST_MAP_BYTES:
        return "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    return None


def _look_at_cordons(config: BrokerConfig) -> str | None:
    cordoned = config.cordoned_log_dirs()
    if _ALL in cordoned:
        return f"When cordoned.log.dirs is set to {_ALL}, it must not contain other values"
    missing = [path for path in cordoned if path not in config.log_dirs]
    if missing:
        return (
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
    return None


def _look_at_consumer_groups(config: BrokerConfig) -> str | None:
    prefix = "group.consumer."
    for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"):
        lowest, highest = f"{prefix}min.{name}", f"{prefix}max.{name}"
        for one, other in ((highest, lowest), (prefix + name, lowest)):
            if config.number(one) < config.number(other):
                return f"{one} must be greater than or equal to {other}"
        if config.number(prefix + name) > config.number(highest):
            return f"{prefix}{name} must be less than or equal to {highest}"
    heartbeat, session = f"{prefix}heartbeat.interval.ms", f"{prefix}session.timeout.ms"
    if config.number(heartbeat) >= config.number(session):
        return f"{heartbeat} must be less than {session}"
    return None


def _endpoints(name: str, value: Value) -> list[Endpoint]:
    assert isinstance(value, list)
    return [_endpoint(name, text) for text in value]


def _endpoint(setting: str, text: str) -> Endpoint:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and port.isdigit() and int(port) <= 65535 and name):
        raise ConfigError(
            f"{setting}: {text!r} is not of the form NAME://host:port, such as PLAINTEXT://127.0.0.1:9092"
        )
    return Endpoint(name, host.strip("[]"), int(port))


def _read_properties(path: str) -> list[tuple[str, str, int]]:
    """The (name, text, line) of a Java properties file, as far as settings use that format."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"cannot read the settings file {path}: {reason}") from None
    found = []
    joined, first = "", 0
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not joined and (not stripped or stripped[0] in "#!"):
            continue
        first = first if joined else number
        joined += stripped
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        found.append((*_split_property(joined, path, first), first))
        joined = ""
    return found


def _split_property(line: str, path: str, number: int) -> tuple[str, str]:
    for position, character in enumerate(line):
        if character in "=:":
            return line[:position].strip(), line[position + 1 :].strip()
    raise ConfigError(f"{path}, line {number}: {line!r} is not of the form name=value")
