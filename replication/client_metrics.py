"""Subscriptions to clients' own metrics (KIP-714): their settings, and which clients they mean.

RULES    1. A subscription means the clients that match all its patterns; one without patterns means all.
         2. Names and sentences are Apache Kafka 4.3's (ClientMetricsConfigs). A pattern is a regular expression, Python's.
NOT HERE What is wanted of a client when several subscriptions mean it, and what it sends (`broker/telemetry.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from protocol.errors import ErrorCode, KafkaError
from storage.settings import Kind, Setting, parse

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000
DEFAULT_INTERVAL_MS = 300_000
CLIENT_FACTS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a pattern can be about."""

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
        interval = interval_ms(settings)
        patterns(settings)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if not MIN_INTERVAL_MS <= interval <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )


def interval_ms(settings: Mapping[str, str]) -> int:
    """How often clients send.

    Raises:
        BadSetting: it is no number.
    """
    value = parse(SUBSCRIPTION_SETTINGS["interval.ms"], settings.get("interval.ms", str(DEFAULT_INTERVAL_MS)))
    assert isinstance(value, int)
    return value


def metrics(settings: Mapping[str, str]) -> list[str]:
    """Which metrics are wanted."""
    return _list(settings, "metrics")


def patterns(settings: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Which clients are meant.

    Raises:
        ValueError: a pattern is none.
    """
    found = {}
    for text in _list(settings, "match"):
        fact, _, pattern = text.partition("=")
        sentence = f"Illegal client matching pattern: {text}"
        if fact.strip() not in CLIENT_FACTS or not pattern or "=" in pattern:
            raise ValueError(sentence)
        try:
            found[fact.strip()] = re.compile(pattern.strip())
        except re.error:
            raise ValueError(sentence) from None
    return found


def means(settings: Mapping[str, str], client: Mapping[str, str]) -> bool:
    """Whether a subscription means a client, of which the `CLIENT_FACTS` are known."""
    return all(pattern.fullmatch(client[fact]) for fact, pattern in patterns(settings).items())


def _list(settings: Mapping[str, str], name: str) -> list[str]:
    value = parse(SUBSCRIPTION_SETTINGS[name], settings.get(name, ""))
    assert isinstance(value, list)
    return value
