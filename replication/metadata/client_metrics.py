"""Subscriptions to clients' own metrics (KIP-714): their settings, and which clients they mean.

RULES    1. A subscription means the clients that match all its patterns; one without patterns means all.
         2. Of a client is wanted what all subscriptions want that mean it; nobody waits longer than five minutes.
         3. Names and sentences are Apache Kafka 4.3's (ClientMetricsConfigs). A pattern is a regular expression, RE2's.
NOT HERE Which clients there are, and what they send (`broker/telemetry/`).
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
EVERYTHING = "*"
CLIENT_FACTS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a pattern can be about."""
Facts = Mapping[str, str | None]
"""What is known of a client, by these names."""

SUBSCRIPTION_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("interval.ms", Kind.INT, str(DEFAULT_INTERVAL_MS), None, "Time between two reports of a client."),
        Setting("match", Kind.LIST, "", None, "Which clients are meant, as name=pattern."),
        Setting("metrics", Kind.LIST, "", None, "Beginnings of the names of the metrics that are wanted; * is all."),
    )
}


def check_subscription(name: str, settings: Mapping[str, str]) -> None:
    """Refuse what a subscription may not be told.

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
    """What is wanted of the clients that it means."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: Mapping[str, Matches]

    def means(self, client: Facts) -> bool:
        """Whether a client is meant."""
        for fact, matches in self.patterns.items():
            value = client[fact]
            if value is None or not matches(value):
                return False
        return True


class Wanted(NamedTuple):
    """What is wanted of one client."""

    metrics: tuple[str, ...]
    interval_ms: int

    def subscription_id(self, instance_id: bytes) -> int:
        """Another one for other metrics, another interval, another client."""
        return zlib.crc32(f"{self.metrics}{self.interval_ms}".encode(), zlib.crc32(instance_id)) - 2**31


def subscription(settings: Mapping[str, str]) -> Subscription:
    """What settings say.

    Raises:
        ValueError: they say nothing that can be.
    """
    interval = parse(SUBSCRIPTION_SETTINGS["interval.ms"], settings.get("interval.ms", str(DEFAULT_INTERVAL_MS)))
    assert isinstance(interval, int)
    return Subscription(frozenset(_list(settings, "metrics")), interval, _patterns(settings))


def wanted_of(client: Facts, subscriptions: Iterable[Subscription]) -> Wanted:
    """All that those want which mean a client, as often as the most impatient of them wants it."""
    meant = [one for one in subscriptions if one.means(client)]
    metrics = frozenset[str]().union(*(one.metrics for one in meant))
    interval = min((one.interval_ms for one in meant), default=DEFAULT_INTERVAL_MS)
    shown = (EVERYTHING,) if EVERYTHING in metrics else tuple(sorted(metrics))
    return Wanted(shown, min(interval, DEFAULT_INTERVAL_MS))


def _patterns(settings: Mapping[str, str]) -> dict[str, Matches]:
    found = {}
    for text in _list(settings, "match"):
        fact, _, pattern = text.partition("=")
        sentence = f"Illegal client matching pattern: {text}"
        if fact.strip() not in CLIENT_FACTS or not pattern or "=" in pattern:
            raise ValueError(sentence)
        try:
            found[fact.strip()] = compile_regex(pattern.strip())
        except BadRegex:
            raise ValueError(sentence) from None
    return found


def _list(settings: Mapping[str, str], name: str) -> list[str]:
    value = parse(SUBSCRIPTION_SETTINGS[name], settings.get(name, ""))
    assert isinstance(value, list)
    return value
