"""Topic settings: names, defaults, precedence and error messages of Kafka."""

from __future__ import annotations

import pytest

from storage.config.config_def import parse, to_text
from storage.config.log_config import TOPIC_SETTINGS, LogConfig, check_topic_settings, log_config, topic_default

# What org.apache.kafka.storage.internals.log.LogConfig.validate of Kafka 4.3.1 says to each.
INVALID_VALUES = [
    ("retention.ms", "abc", "Not a number of type LONG"),
    ("retention.ms", "-5", "Value must be at least -1"),
    ("retention.ms", "", "Not a number of type LONG"),
    ("retention.ms", "1_000", "Not a number of type LONG"),
    ("compression.type", "foo", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
    ("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ("preallocate", "x", "Expected value to be either true or false"),
    ("segment.bytes", "10", "Value must be at least 1048576"),
    ("segment.bytes", "99999999999", "Not a number of type INT"),
    ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
]
REPLICA_LIST = (
    "Invalid value [x] for configuration leader.replication.throttled.replicas: "
    "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
)
REFUSALS = [
    *(({name: text}, f"Invalid value {text} for configuration {name}: {why}") for name, text, why in INVALID_VALUES),
    (
        {"min.cleanable.dirty.ratio": "2"},
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    ({"foo": "1"}, "Unknown topic config name: foo"),
    ({"leader.replication.throttled.replicas": "x"}, REPLICA_LIST),
    ({"leader.replication.throttled.replicas": "²:1"}, REPLICA_LIST.replace("[x]", "[²:1]")),
    (
        {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "10"},
        "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (10)",
    ),
    (
        {"barnabas.storage.engine": "x"},
        "Invalid value x for configuration barnabas.storage.engine: String must be one of: segments, commitlog",
    ),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSALS)
def test_an_invalid_value_is_rejected_with_kafkas_message(settings: dict[str, str], sentence: str) -> None:
    """Captured from Apache Kafka 4.3.1, except those about barnabas.storage.engine."""
    with pytest.raises(ValueError) as refusal:
        check_topic_settings(settings, {})
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup.policy": "compact, delete"}, {"cleanup.policy": ""}, {"preallocate": "TRUE"}, {"retention.ms": " 5 "},
        {"leader.replication.throttled.replicas": "*"}, {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"internal.segment.bytes": "10"}, {"retention.ms": "-1"},
    ],
)  # fmt: skip
def test_values_accepted_by_kafka_are_accepted(settings: dict[str, str]) -> None:
    """Captured from Apache Kafka 4.3.1."""
    check_topic_settings(settings, {})


@pytest.mark.parametrize(
    ("topic", "broker", "expected"),
    [
        ({}, {}, False), ({"barnabas.storage.engine": "commitlog"}, {}, True),
        ({}, {"barnabas.log.storage.engine": "commitlog"}, True),
        ({"barnabas.storage.engine": "segments"}, {"barnabas.log.storage.engine": "commitlog"}, False),
        ({"cleanup.policy": "compact"}, {"barnabas.log.storage.engine": "commitlog"}, False),
        ({"barnabas.storage.engine": "commitlog", "cleanup.policy": "compact,delete"}, {}, False),
    ],
)  # fmt: skip
def test_the_engine_is_the_topics_or_the_brokers_and_segments_for_compacted_topics(
    topic: dict[str, str], broker: dict[str, str], *, expected: bool
) -> None:
    check_topic_settings(topic, broker)
    assert log_config(topic, broker).uses_commit_log is expected


def test_log_config_defaults_equal_the_settings_table() -> None:
    assert log_config({}, {}) == LogConfig()


def test_a_topic_value_precedes_broker_synonyms_and_kafkas_default() -> None:
    broker = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    assert log_config({"retention.ms": "7"}, broker).retention_ms == 7
    assert log_config({}, broker).retention_ms == 180_000
    assert topic_default("retention.ms", {"log.retention.hours": "2"}) == ("7200000", "log.retention.hours")
    assert topic_default("retention.ms", {}) == ("604800000", None)


_HOUR, _MINUTE, _WEEK = 3_600_000, 60_000, 604_800_000


@pytest.mark.parametrize(
    ("topic", "ms", "minutes", "hours", "expected"),
    [
        (None, None, None, None, _WEEK),
        (None, None, None, "2", 2 * _HOUR),
        (None, None, "3", "2", 3 * _MINUTE),
        (None, "4", "3", "2", 4),
        ("5", "4", "3", "2", 5),
        ("-1", "4", "3", "2", -1),
        ("0", None, None, None, 0),
        (None, "-1", "3", "2", -1),
        (None, None, "-1", "2", -1),
        (None, None, None, "-1", -1),
        (None, None, None, "-7", -1),
        (None, "-7", None, None, -1),
        ("6", None, None, "-1", 6),
    ],
)
def test_retention_ms_of_the_topic_overrides_the_brokers_units_of_time(
    topic: str | None, ms: str | None, minutes: str | None, hours: str | None, expected: int
) -> None:
    """The topic's value, then the broker's milliseconds, minutes, hours; negative means no limit."""
    named = {"log.retention.ms": ms, "log.retention.minutes": minutes, "log.retention.hours": hours}
    broker = {name: text for name, text in named.items() if text is not None}
    assert log_config({} if topic is None else {"retention.ms": topic}, broker).retention_ms == expected


@pytest.mark.parametrize(
    ("topic", "broker", "expected"), [(None, None, -1), (None, "7", 7), ("8", "7", 8), ("-1", "7", -1)]
)
def test_retention_bytes_of_the_topic_override_the_brokers(
    topic: str | None, broker: str | None, expected: int
) -> None:
    """The topic's value, then the broker's; -1 means no limit."""
    own = {} if topic is None else {"retention.bytes": topic}
    given = {} if broker is None else {"log.retention.bytes": broker}
    assert log_config(own, given).retention_bytes == expected


@pytest.mark.parametrize(
    ("name", "text", "printed"),
    [
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "compact,delete, compact", "compact,delete"),
        ("leader.replication.throttled.replicas", "0:1, 0:1", "0:1,0:1"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
    ],
)
def test_a_parsed_value_is_printed_as_kafka_prints_it(name: str, text: str, printed: str) -> None:
    assert to_text(parse(TOPIC_SETTINGS[name], text)) == printed
