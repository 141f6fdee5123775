"""Client metrics subscriptions (KIP-714): their configs, and the clients that they match (Kafka: ClientMetricsConfigs).

RULES    1. A subscription matches clients that match all its patterns; without patterns it matches all clients.
         2. A client pushes the union of the metrics of all matching subscriptions, at the shortest of their intervals and at
            least every five minutes.
         3. Names and messages are those of Apache Kafka 4.3. Patterns are RE2 regular expressions.
NOT HERE The clients and their metrics (`broker/telemetry/`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from replication.re2_patterns import BadRegex, Matches, compile_regex
from storage.config.config_def import Kind, Setting, parse

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000
DEFAULT_INTERVAL_MS = 300_000
ALL_METRICS = "*"
CLIENT_ATTRIBUTES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a pattern can match."""
ClientAttributes = Mapping[str, str | None]
"""A client's attributes by these names."""

SUBSCRIPTION_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "interval.ms", Kind.INT, str(DEFAULT_INTERVAL_MS), None, "The interval between two pushes of a client."
        ),
        Setting("match", Kind.LIST, "", None, "The clients to match, as name=pattern."),
        Setting("metrics", Kind.LIST, "", None, "Prefixes of the metric names to push; * means all."),
    )
}


def check_subscription(name: str, settings: Mapping[str, str]) -> None:
    """Validate the configs of a subscription.

    Raises:
        KafkaError: INVALID_REQUEST or INVALID_CONFIG.
    """
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in settings:
        if key not in SUBSCRIPTION_SETTINGS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    try:
        interval = subscription(settings).interval_ms
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if not MIN_INTERVAL_MS <= interval <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )


class Subscription(NamedTuple):
    """Metrics that matching clients push."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, Matches]

    def matches_client(self, client: ClientAttributes) -> bool:
        """Whether a client matches all patterns."""
        for attribute, matches in self.patterns.items():
            value = client[attribute]
            if value is None or not matches(value):
                return False
        return True


class ClientSubscription(NamedTuple):
    """What one client pushes."""

    metrics: tuple[str, ...]
    interval_ms: int

    def subscription_id(self, instance_id: bytes) -> int:
        """Differs for other metrics, another interval or another client."""
        return zlib.crc32(f"{self.metrics}{self.interval_ms}".encode(), zlib.crc32(instance_id)) - 2**31


def subscription(settings: Mapping[str, str]) -> Subscription:
    """Parse the configs of a subscription.

    Raises:
        ValueError: a value is invalid.
    """
    interval = parse(SUBSCRIPTION_SETTINGS["interval.ms"], settings.get("interval.ms", str(DEFAULT_INTERVAL_MS)))
    assert isinstance(interval, int)
    return Subscription(frozenset(_list(settings, "metrics")), interval, _patterns(settings))


def client_subscription(client: ClientAttributes, subscriptions: Iterable[Subscription]) -> ClientSubscription:
    """The union of the matching subscriptions, with their shortest interval."""
    matching = [one for one in subscriptions if one.matches_client(client)]
    metrics = frozenset[str]().union(*(one.metrics for one in matching))
    interval = min((one.interval_ms for one in matching), default=DEFAULT_INTERVAL_MS)
    metrics_shown = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
    return ClientSubscription(metrics_shown, min(interval, DEFAULT_INTERVAL_MS))


def _patterns(settings: Mapping[str, str]) -> dict[str, Matches]:
    found = {}
    for text in _list(settings, "match"):
        attribute, _, pattern = text.partition("=")
        sentence = f"Illegal client matching pattern: {text}"
        if attribute.strip() not in CLIENT_ATTRIBUTES or not pattern or "=" in pattern:
            raise ValueError(sentence)
        try:
            found[attribute.strip()] = compile_regex(pattern.strip())
        except BadRegex:
            raise ValueError(sentence) from None
    return found


def _list(settings: Mapping[str, str], name: str) -> list[str]:
    value = parse(SUBSCRIPTION_SETTINGS[name], settings.get(name, ""))
    assert isinstance(value, list)
    return value
