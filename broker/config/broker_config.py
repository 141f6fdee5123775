"""The broker's settings (Kafka: KafkaConfig).

RULES    1. Names, defaults and valid values are Kafka's; the definitions are in `config_definitions.py` and, for topics,
            `storage/config/log_config.py`.
NOT HERE Files and the command line (`config_loader.py`), invalid combinations (`config_rules.py`), settings changed at run
         time (the metadata log), the effect of a setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from broker.config.config_definitions import BROKER_SETTINGS
from broker.config.ignored_configs import IGNORED
from replication.controller.periodic_tasks import TaskIntervals
from replication.metadata.delegation_tokens import TokenSettings
from replication.metadata_log.metadata_log_open import METADATA_LOG_CONFIG
from replication.metadata_log.metadata_snapshots import SnapshotSettings
from replication.partition.replica_fetcher import FetchSettings
from replication.quota_rates import QuotaWindows
from replication.raft.quorum_state import QuorumTimes
from storage.compaction.cleaner_job import CleanerResources
from storage.config.config_def import MAX_INT, Value, parse
from storage.config.log_config import LogConfig

_MIN_BUFFER_BYTES = 4096
MAX_PORT = 65_535
ALL_LOG_DIRS = "*"
_INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"


class ConfigError(ValueError):
    """Invalid settings; the message is for the command line."""


class SocketSettings(NamedTuple):
    """The settings of sockets."""

    send_buffer_bytes: int = 102_400
    receive_buffer_bytes: int = 102_400
    request_max_bytes: int = 104_857_600
    listen_backlog_size: int = 50
    connections_max_idle_ms: int = 600_000


class CleanerSettings(NamedTuple):
    """The settings of compaction."""

    threads: int
    backoff_ms: int
    bytes_per_second: float
    """Per thread."""
    resources: CleanerResources
    """Per thread."""


class Endpoint(NamedTuple):
    """A listener's name, in upper case, and its address; an empty host means all addresses of this machine."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        """Whether it means all addresses."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True)
class BrokerConfig:
    """All settings of one node; `given` has the texts of the settings without those from defaults."""

    given: Mapping[str, str]

    def value(self, name: str) -> Value:
        """The parsed value of a broker setting, with or without effect."""
        setting = BROKER_SETTINGS.get(name) or IGNORED[name]
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
        return int(self.given.get("node.id", "1"))

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
        return [name.upper() for name in self.texts("controller.listener.names")]

    @property
    def slow_request_ns(self) -> int | None:
        """From this duration on a request is logged as slow; None: never."""
        milliseconds = self.number("barnabas.slow.request.ms")
        return None if milliseconds < 0 else milliseconds * 1_000_000

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

    def socket_settings(self) -> SocketSettings:
        """The settings of sockets."""
        return SocketSettings(
            send_buffer_bytes=self.number("socket.send.buffer.bytes"),
            receive_buffer_bytes=self.number("socket.receive.buffer.bytes"),
            request_max_bytes=self.number("socket.request.max.bytes"),
            listen_backlog_size=self.number("socket.listen.backlog.size"),
            connections_max_idle_ms=self.number("connections.max.idle.ms"),
        )

    def quota_windows(self) -> QuotaWindows:
        """The windows of client quotas."""
        return QuotaWindows(self.number("quota.window.num"), self.number("quota.window.size.seconds") * 1000)

    def cordoned_log_dirs(self) -> list[str]:
        """The cordoned log directories, which take no new replicas, as in `log_dirs`."""
        value = self.texts("cordoned.log.dirs")
        return self.log_dirs if value == [ALL_LOG_DIRS] else value

    @cached_property
    def inter_broker_listener(self) -> str:
        """The name of the inter-broker listener."""
        value = self.value("inter.broker.listener.name") or self.given.get(_INTER_BROKER_PROTOCOL)
        if isinstance(value, str):
            return value.upper()
        names = [listener.name for listener in self.listeners]
        return "PLAINTEXT" if "PLAINTEXT" in names or not names else names[0]

    @cached_property
    def listener_protocols(self) -> dict[str, str]:
        """The map of listener names to security protocols, in upper case."""
        entries = (entry.partition(":") for entry in self.given.get("listener.security.protocol.map", "").split(","))
        return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in entries}

    @property
    def is_inter_broker_ambiguous(self) -> bool:
        """Whether two settings say which listener is for connections between brokers."""
        return {"inter.broker.listener.name", _INTER_BROKER_PROTOCOL} <= self.given.keys()

    @cached_property
    def super_users(self) -> list[str]:
        """The principals that an authorizer allows everything; a setting of the authorizer's class."""
        return [text.strip() for text in self.given.get("super.users", "").split(";") if text.strip()]

    @cached_property
    def allows_without_acl(self) -> bool:
        """Whether an authorizer allows everything on resources without entries; a setting of its class."""
        return self.given.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"

    def fetch_settings(self) -> FetchSettings:
        """The settings of a follower's fetch requests."""
        return FetchSettings(
            wait_max_ms=self.number("replica.fetch.wait.max.ms"),
            min_bytes=self.number("replica.fetch.min.bytes"),
            max_bytes=self.number("replica.fetch.max.bytes"),
            response_max_bytes=self.number("replica.fetch.response.max.bytes"),
            backoff_ms=self.number("replica.fetch.backoff.ms"),
        )

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
            token_expiry_ms=self.number("delegation.token.expiry.check.interval.ms")
            if self.tokens.is_enabled
            else None,
        )

    @property
    def tokens(self) -> TokenSettings:
        """The settings of delegation tokens."""
        return TokenSettings(
            str(self.value("delegation.token.secret.key") or "").encode(),
            self.number("delegation.token.max.lifetime.ms"),
            self.number("delegation.token.expiry.time.ms"),
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


def is_address(text: str) -> bool:
    """Whether a text is of the form host:port, with an empty host or one."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and is_number(port, MAX_PORT)


def is_utf8(text: str) -> bool:
    """Whether it can be in requests and files; Python marks other bytes of a command line or a variable."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def is_number(text: str, highest: int) -> bool:
    """Whether a text has only the digits 0 to 9, and is a number up to `highest`."""
    return re.fullmatch("[0-9]{1,10}", text) is not None and int(text) <= highest


def _endpoint(setting: str, text: str) -> Endpoint:
    name, _, address = text.partition("://")
    if not name or not is_address(address):
        raise ConfigError(
            f"{setting}: {text!r} is not of the form NAME://host:port, such as PLAINTEXT://127.0.0.1:9092, "
            f"with a port up to {MAX_PORT}"
        )
    host, _, port = address.rpartition(":")
    return Endpoint(name.upper(), host.strip("[]"), int(port))
