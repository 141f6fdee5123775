"""The broker's settings, from files and the command line (Kafka: KafkaConfig).

RULES    1. Names, defaults and valid values are Kafka's; the definitions are in `config_definitions.py` and, for topics,
            `storage/config/log_config.py`.
         2. The command line overrides the file, the file overrides the defaults.
         3. An invalid value stops the startup with a sentence that names file, line and the valid values. An unknown name is
            only a warning: a shared file may contain settings of client libraries.
NOT HERE Settings changed at run time (the metadata log), the effect of a setting.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.ignored_configs import IGNORED
from broker.config.listener_rules import Endpoint, ListenerConfig, find_listener_error
from replication.controller.periodic_tasks import TaskIntervals
from replication.metadata_log.metadata_log_open import METADATA_LOG_CONFIG
from replication.metadata_log.metadata_snapshots import SnapshotSettings
from replication.partition.replica_fetcher import FetchSettings
from replication.partition.replica_selector import SELECTORS, SelectReplica
from replication.raft.quorum_state import QuorumTimes
from storage.compaction.cleaner_job import CleanerResources
from storage.config.config_def import MAX_INT, BadSetting, Value, parse
from storage.config.log_config import LogConfig, log_config

_log = logging.getLogger("barnabas.config")

_MIN_BUFFER_BYTES = 4096
_MIN_DEDUPE_BUFFER_BYTES = 1024 * 1024
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
"""The settings without a file: one node, like Kafka's example `server.properties`."""


class ConfigError(ValueError):
    """Invalid settings; the message is for the command line."""


class SocketSettings(NamedTuple):
    """The settings of sockets."""

    send_buffer_bytes: int = 102_400
    receive_buffer_bytes: int = 102_400
    request_max_bytes: int = 104_857_600
    listen_backlog_size: int = 50
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    connections_max_idle_ms: int = 600_000


class CleanerSettings(NamedTuple):
    """The settings of compaction."""

    threads: int
    backoff_ms: int
    bytes_per_second: float
    """Per thread."""
    resources: CleanerResources
    """Per thread."""


@dataclass(frozen=True)
class BrokerConfig:
    """All settings of one node; `given` holds the texts that do not come from defaults."""

    given: Mapping[str, str]

    def value(self, name: str) -> Value:
        """The parsed value of a broker setting."""
        setting = BROKER_SETTINGS[name]
        return parse(setting, self.given.get(name, setting.default))

    def number(self, name: str) -> int:
        """The value of a numeric setting with a default."""
        value = self.value(name)
        assert isinstance(value, int)
        return value

    def decimal(self, name: str) -> float:
        """The value of a decimal setting with a default."""
        value = self.value(name)
        assert isinstance(value, float)
        return value

    def texts(self, name: str) -> list[str]:
        """The value of a list setting; empty if it is unset."""
        value = self.value(name)
        assert value is None or isinstance(value, list)
        return value or []

    @cached_property
    def node_id(self) -> int:
        """The id of this node."""
        return int(self.given.get("node.id", self.given.get("broker.id", "1")))

    @cached_property
    def log_dirs(self) -> list[str]:
        """The log directories."""
        return self.texts("log.dirs") or self.texts("log.dir")

    @cached_property
    def metadata_log_dir(self) -> str:
        """The directory of the metadata log."""
        value = self.value("metadata.log.dir")
        return value if isinstance(value, str) else self.log_dirs[0]

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles of this node: broker, controller or both."""
        return frozenset(self.texts("process.roles") or ("broker", "controller"))

    @cached_property
    def listeners(self) -> list[Endpoint]:
        """The client listeners: those in `listeners` that are not the controller's."""
        return [endpoint for endpoint in self._all_listeners if endpoint.name not in self.controller_listener_names]

    @cached_property
    def controller_listeners(self) -> list[Endpoint]:
        """The controller's listeners."""
        return [endpoint for endpoint in self._all_listeners if endpoint.name in self.controller_listener_names]

    @cached_property
    def advertised_listeners(self) -> dict[str, Endpoint]:
        """advertised.listeners by listener name."""
        return {endpoint.name: endpoint for endpoint in self._endpoints("advertised.listeners")}

    @cached_property
    def controller_listener_names(self) -> list[str]:
        """Names of the controller's listeners."""
        return self.texts("controller.listener.names")

    @cached_property
    def metrics_listener(self) -> Endpoint | None:
        """The listener of the metrics page; None: no page."""
        text = self.value("barnabas.metrics.listener")
        return _endpoint("barnabas.metrics.listener", str(text)) if text else None

    @cached_property
    def _all_listeners(self) -> list[Endpoint]:
        return self._endpoints("listeners")

    def _endpoints(self, name: str) -> list[Endpoint]:
        return [_endpoint(name, text) for text in self.texts(name)]

    def listener_config(self) -> ListenerConfig:
        """All settings of listeners, for their validation."""
        return ListenerConfig(
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
        """The cordoned log directories, which take no new replicas, as in `log_dirs`."""
        value = self.texts("cordoned.log.dirs")
        return self.log_dirs if value == [_ALL] else value

    @cached_property
    def inter_broker_listener(self) -> str:
        """The name of the inter-broker listener."""
        value = self.value("inter.broker.listener.name")
        if isinstance(value, str):
            return value
        return self.listeners[0].name if self.listeners else "PLAINTEXT"

    def fetch_settings(self) -> FetchSettings:
        """The settings of a follower's fetch requests."""
        return FetchSettings(
            wait_max_ms=self.number("replica.fetch.wait.max.ms"),
            min_bytes=self.number("replica.fetch.min.bytes"),
            max_bytes=self.number("replica.fetch.max.bytes"),
            response_max_bytes=self.number("replica.fetch.response.max.bytes"),
            backoff_ms=self.number("replica.fetch.backoff.ms"),
        )

    def replica_selector(self) -> SelectReplica | None:
        """Selects the replica that a consumer reads from; None: the leader."""
        return SELECTORS.get(str(self.value("replica.selector.class")))

    @property
    def memory_ratio(self) -> float:
        """A record with more than this share of the memory behind it is read from a follower."""
        return self.decimal("barnabas.replica.selector.memory.ratio")

    def quorum_times(self) -> QuorumTimes:
        """The timeouts of a raft replica."""
        return QuorumTimes(
            election_timeout_ms=self.number("controller.quorum.election.timeout.ms"),
            fetch_timeout_ms=self.number("controller.quorum.fetch.timeout.ms"),
            election_backoff_max_ms=self.number("controller.quorum.election.backoff.max.ms"),
            request_timeout_ms=self.number("controller.quorum.request.timeout.ms"),
            retry_backoff_ms=self.number("controller.quorum.retry.backoff.ms"),
        )

    def controller_intervals(self) -> TaskIntervals:
        """The intervals of the active controller's periodic tasks."""
        balances = bool(self.value("auto.leader.rebalance.enable"))
        return TaskIntervals(
            leader_balance_ms=self.number("leader.imbalance.check.interval.seconds") * 1000 if balances else None,
            unclean_election_ms=self.number("unclean.leader.election.interval.ms"),
            no_op_ms=self.number("metadata.max.idle.interval.ms") or None,
        )

    def metadata_log_config(self) -> LogConfig:
        """The settings of the metadata log."""
        return replace(
            METADATA_LOG_CONFIG,
            segment_bytes=self.number("metadata.log.segment.bytes"),
            segment_ms=self.number("metadata.log.segment.ms"),
        )

    def cleaner_settings(self) -> CleanerSettings:
        """The resources of compaction; 0 threads turn it off."""
        threads = self.number("log.cleaner.threads") if self.value("log.cleaner.enable") else 0
        share = max(threads, 1)
        return CleanerSettings(
            threads,
            self.number("log.cleaner.backoff.ms"),
            max(self.decimal("log.cleaner.io.max.bytes.per.second") / share, 1.0),
            CleanerResources(
                min(self.number("log.cleaner.dedupe.buffer.size") // share, MAX_INT),
                self.decimal("log.cleaner.io.buffer.load.factor"),
                max(self.number("log.cleaner.io.buffer.size") // share // 2, _MIN_BUFFER_BYTES),
            ),
        )

    def snapshot_settings(self) -> SnapshotSettings:
        """When snapshots of the metadata are generated, and how long they are retained."""
        return SnapshotSettings(
            bytes_between=self.number("metadata.log.max.record.bytes.between.snapshots"),
            interval_ms=self.number("metadata.log.max.snapshot.interval.ms"),
            retention_bytes=self.number("metadata.max.retention.bytes"),
            retention_ms=self.number("metadata.max.retention.ms"),
        )


def load_config(
    path: str | None, overrides: Mapping[str, str], listen: str | None = None, *, use_kafka_defaults: bool = False
) -> BrokerConfig:
    """Reads a settings file (None: the quick start's settings) and applies the command line's values.

    `listen` replaces the client listeners only. With `use_kafka_defaults`, no file means Kafka's defaults.

    Raises:
        ConfigError: the file is unreadable, a line is malformed, or a value is invalid.
    """
    texts = dict(QUICK_START) if path is None and not use_kafka_defaults else {}
    origin = dict.fromkeys(texts, "the built-in settings")
    if path is not None:
        for name, text, line in _read_properties(path):
            texts[name], origin[name] = text, f"{path}, line {line}"
    for name, text in overrides.items():
        texts[name], origin[name] = text, "the command line"
    for name, text in texts.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is not None:
            try:
                parse(setting, text)
            except BadSetting as invalid:
                raise ConfigError(f"{origin[name]}: {invalid}") from None
        elif name not in IGNORED:
            _log.warning("unknown setting %s (%s) is ignored", name, origin[name])
    config = BrokerConfig(texts)
    if listen is not None:
        controller_listeners = [
            f"{e.name}://{f'[{e.host}]' if ':' in e.host else e.host}:{e.port}" for e in config.controller_listeners
        ]
        config = BrokerConfig({**texts, "listeners": ",".join([f"PLAINTEXT://{listen}", *controller_listeners])})
    error = find_listener_error(config.listener_config()) or find_conflict(config)
    if error is not None:
        raise ConfigError(error)
    return config


def find_conflict(config: BrokerConfig) -> str | None:
    """Validates combinations of settings, with Kafka's messages; None if they are valid."""
    return (
        _check_metrics_listener(config)
        or _check_roll_time(config)
        or _check_retention(config)
        or _check_cleaner(config)
        or _check_cordoned_dirs(config)
        or _check_consumer_groups(config)
    )


def _check_metrics_listener(config: BrokerConfig) -> str | None:
    if config.metrics_listener is not None and config.metrics_listener.name != "HTTP":
        return "barnabas.metrics.listener: it speaks HTTP and nothing else, such as HTTP://127.0.0.1:9464"
    return None


def _check_roll_time(config: BrokerConfig) -> str | None:
    for name, lowest in (("log.roll.ms", 1), ("log.roll.jitter.ms", 0)):
        value = config.value(name)
        if isinstance(value, int) and value < lowest:
            return f"{name} must be greater than or equal to {lowest}"
    return None


def _check_retention(config: BrokerConfig) -> str | None:
    if log_config({}, config.given).retention_ms == 0:
        return "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    return None


def _check_cleaner(config: BrokerConfig) -> str | None:
    threads, _, _, resources = config.cleaner_settings()
    if threads and resources.memory_bytes <= _MIN_DEDUPE_BUFFER_BYTES:
        return "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    return None


def _check_cordoned_dirs(config: BrokerConfig) -> str | None:
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


def _check_consumer_groups(config: BrokerConfig) -> str | None:
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


def _endpoint(setting: str, text: str) -> Endpoint:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and port.isdigit() and int(port) <= 65535 and name):
        raise ConfigError(
            f"{setting}: {text!r} is not of the form NAME://host:port, such as PLAINTEXT://127.0.0.1:9092"
        )
    return Endpoint(name, host.strip("[]"), int(port))


def _read_properties(path: str) -> list[tuple[str, str, int]]:
    """The (name, text, line) of a Java properties file, as far as settings use the format."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the settings file {path}: {reason}") from None
    properties = []
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
        properties.append((*_split_property(joined, path, first), first))
        joined = ""
    return properties


def _split_property(line: str, path: str, number: int) -> tuple[str, str]:
    parts = re.split("[=:]", line, maxsplit=1)
    if len(parts) < 2:
        raise ConfigError(f"{path}, line {number}: {line!r} is not of the form name=value")
    name, value = parts
    return name.strip(), value.strip()
