"""Topic settings and the LogConfig of a log.

RULES    1. A topic's own value wins; then the broker's value under the synonym's name; then Kafka's default.
         2. Synonyms are tried in the order of `SYNONYMS`; hours and minutes become milliseconds only here.
NOT HERE Broker settings without a topic equivalent (`broker/config/broker_config.py`); how settings are changed and stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from storage.config.config_def import (
    MAX_LONG,
    BadSetting,
    Kind,
    Setting,
    Value,
    at_least,
    between,
    between_or,
    list_of,
    one_of,
    parse,
)

_REPLICA = re.compile("[0-9]+:[0-9]+")
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


def _replica_list(name: str) -> Callable[[Value], str | None]:
    def check(value: Value) -> str | None:
        assert isinstance(value, list)
        if value == ["*"]:
            return None
        for element in value:
            if element and not _REPLICA.fullmatch(element):
                return (
                    f"{name} must be the literal '*' or a list of replicas in the following format: "
                    "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
                )
        return None

    return check


def _throttled(name: str, whose: str) -> Setting:
    return Setting(
        name, Kind.LIST, "", _replica_list(name), f"Replicas whose {whose} side of replication is throttled."
    )


def _index_fields(value: Value) -> str | None:
    assert isinstance(value, list)
    for field in value:
        if field != "key" and not (field.startswith("header:") and field != "header:"):
            return "barnabas.index.keys must be a list of key and header:<name>"
    return None


_FOREVER = str(MAX_LONG)

DELIVER_TO = "barnabas.deliver.to"
INDEX_KEYS = "barnabas.index.keys"
DELIVER_MAX_MS = "barnabas.deliver.max.ms"

TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(INDEX_KEYS, Kind.LIST, "", _index_fields,
                "What is indexed of records for searches: key, header:<name>; empty is no index. Not in Apache Kafka."),
        Setting("barnabas.storage.engine", Kind.STRING, "segments", one_of("segments", "commitlog"),
                "Where a topic's records are stored: 'segments' are files of their own, 'commitlog' is one log for all "
                "partitions of a log directory. A change copies the records. Apache Kafka has no such setting."),
        Setting(DELIVER_MAX_MS, Kind.LONG, "2592000000", at_least(0),
                "How far in the future a record of a schedule topic may be due."),
        Setting(DELIVER_TO, Kind.STRING, "", None,
                "The topic to which records are delivered when they are due; empty: this is no schedule topic."),
        Setting("cleanup.policy", Kind.LIST, "delete", list_of("compact", "delete"),
                "What happens to old segments: deleted by time and size, compacted by key, or both."),
        Setting("compression.gzip.level", Kind.INT, "-1", between_or(1, 9, -1),
                "Level for gzip when this topic recompresses."),
        Setting("compression.lz4.level", Kind.INT, "9", between(1, 17), "Level for lz4 when this topic recompresses."),
        Setting("compression.type", Kind.STRING, "producer",
                one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
                "Codec that batches are stored with; 'producer' keeps what the producer chose."),
        Setting("compression.zstd.level", Kind.INT, "3", between(-131072, 22),
                "Level for zstd when this topic recompresses."),
        Setting("delete.retention.ms", Kind.LONG, "86400000", at_least(0),
                "How long a compacted topic keeps tombstones and transaction markers."),
        Setting("file.delete.delay.ms", Kind.LONG, "60000", at_least(0),
                "How long a deleted segment's file stays on disk under its .deleted name."),
        Setting("flush.messages", Kind.LONG, _FOREVER, at_least(1),
                "Records after which the log is synced; 1 syncs before every acknowledgement."),
        Setting("flush.ms", Kind.LONG, _FOREVER, at_least(0), "Longest time that a record stays unsynced."),
        _throttled("follower.replication.throttled.replicas", "follower"),
        Setting("index.interval.bytes", Kind.INT, "4096", at_least(0),
                "Bytes of log after which the sparse indexes get an entry."),
        Setting("internal.segment.bytes", Kind.INT, None, None, "Segment size below segment.bytes' minimum, for tests."),
        _throttled("leader.replication.throttled.replicas", "leader"),
        Setting("local.retention.bytes", Kind.LONG, "-2", at_least(-2),
                "Size kept on local disk by tiered storage; -2 means retention.bytes."),
        Setting("local.retention.ms", Kind.LONG, "-2", at_least(-2),
                "Age kept on local disk by tiered storage; -2 means retention.ms."),
        Setting("max.compaction.lag.ms", Kind.LONG, _FOREVER, at_least(1),
                "Longest time that a record may stay uncompacted."),
        Setting("max.message.bytes", Kind.INT, "1048588", at_least(0),
                "Largest record batch taken, its 12 bytes of log overhead included."),
        Setting("message.timestamp.after.max.ms", Kind.LONG, "3600000", at_least(0),
                "How far a record's CreateTime may be after the broker's clock."),
        Setting("message.timestamp.before.max.ms", Kind.LONG, _FOREVER, at_least(0),
                "How far a record's CreateTime may be before the broker's clock."),
        Setting("message.timestamp.type", Kind.STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
                "Whether records keep the producer's time or get the broker's."),
        Setting("min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", between(0, 1),
                "Share of the log that must be uncompacted before it is compacted."),
        Setting("min.compaction.lag.ms", Kind.LONG, "0", at_least(0), "Shortest time that a record stays uncompacted."),
        Setting("min.insync.replicas", Kind.INT, "1", at_least(1),
                "Replicas that must hold a record before acks=all is acknowledged."),
        Setting("preallocate", Kind.BOOLEAN, "false", None, "Whether a new segment's file gets its full size at once."),
        Setting("remote.log.copy.disable", Kind.BOOLEAN, "false", None, "Tiered storage: stop copying to the remote tier."),
        Setting("remote.log.delete.on.disable", Kind.BOOLEAN, "false", None,
                "Tiered storage: delete remote data when it is switched off."),
        Setting("remote.storage.enable", Kind.BOOLEAN, "false", None, "Tiered storage: not available in this broker."),
        Setting("retention.bytes", Kind.LONG, "-1", None, "Size of a partition above which old segments go; -1 is no limit."),
        Setting("retention.ms", Kind.LONG, "604800000", at_least(-1), "Age above which old segments go; -1 is no limit."),
        Setting("segment.bytes", Kind.INT, "1073741824", at_least(1048576), "Size at which a segment is rolled."),
        Setting("segment.index.bytes", Kind.INT, "10485760", at_least(4), "Largest size of an index file."),
        Setting("segment.jitter.ms", Kind.LONG, "0", at_least(0), "Random part subtracted from segment.ms."),
        Setting("segment.ms", Kind.LONG, "604800000", at_least(1), "Age at which a segment is rolled even when not full."),
        Setting("unclean.leader.election.enable", Kind.BOOLEAN, "false", None,
                "Whether a replica outside the ISR may become the leader when no other is left, losing records."),
    )
}  # fmt: skip
"""All topic settings of Apache Kafka 4.3 (org.apache.kafka.storage.internals.log.LogConfig), and those of this broker."""

STORAGE_ENGINE = "barnabas.storage.engine"
COMMIT_LOG = "commitlog"

OPTIONAL_TOPIC_SETTINGS = frozenset({DELIVER_TO, DELIVER_MAX_MS, INDEX_KEYS, "internal.segment.bytes"})
"""Shown for a topic only if they are set."""

_SAME_NAME = (
    "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "min.insync.replicas", "unclean.leader.election.enable",
)  # fmt: skip
_SAME_WITH_LOG = (
    "cleanup.policy", "flush.ms", "index.interval.bytes", "local.retention.bytes", "local.retention.ms",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type", "preallocate",
    "retention.bytes", "segment.bytes",
)  # fmt: skip

SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    **{name: ((name, 1),) for name in _SAME_NAME},
    **{name: ((f"log.{name}", 1),) for name in _SAME_WITH_LOG},
    STORAGE_ENGINE: (("barnabas.log.storage.engine", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
}
"""Topic setting -> broker settings for its default, the first set one wins; with the factor to milliseconds."""


def broker_synonyms(name: str) -> tuple[str, ...]:
    """A broker setting and its fallbacks."""
    for synonyms in SYNONYMS.values():
        names = tuple(synonym for synonym, _ in synonyms)
        if name in names:
            return names[names.index(name) :]
    return (name,)


DYNAMIC_BROKER_SETTINGS = frozenset(names[0][0] for names in SYNONYMS.values())
"""Broker settings that can be changed at run time: the topic defaults, under their first name."""


@lru_cache(maxsize=1024)
def find_default_error(name: str, text: str) -> str | None:
    """Why the value of a dynamic broker setting cannot be the default of a topic setting; None if it can, or is none."""
    for topic_setting, ((first_name, factor), *_) in SYNONYMS.items():
        if first_name == name:
            try:
                parse(TOPIC_SETTINGS[topic_setting], _for_a_topic(topic_setting, text, factor))
            except BadSetting as error:
                return str(error)
    return None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LogConfig:
    """The parsed settings of one log; field names are the settings' with underscores."""

    barnabas_index_keys: tuple[str, ...] = ()
    barnabas_storage_engine: str = "segments"
    barnabas_deliver_max_ms: int = 2_592_000_000
    barnabas_deliver_to: str = ""
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000

    @property
    def is_compacted(self) -> bool:
        """Whether the log is compacted, so that every record needs a key. A schedule topic never is: it may have the policy as
        the broker's default, and pending records would be lost.
        """
        return "compact" in self.cleanup_policy and not self.is_schedule

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment is rolled: a compacted one in time for `max.compaction.lag.ms`."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def uses_commit_log(self) -> bool:
        """Whether a new log is stored in the commit log; compacted ones never are."""
        return self.barnabas_storage_engine == COMMIT_LOG and not self.is_compacted

    @property
    def is_schedule(self) -> bool:
        """Whether records are delivered to another topic when they are due."""
        return bool(self.barnabas_deliver_to)


_FIELDS = {field.name.replace("_", "."): field.name for field in fields(LogConfig)}


def _for_a_topic(name: str, text: str, factor: int) -> str:
    if name == "retention.ms" and text.strip().startswith("-"):
        return "-1"  # in a broker setting, every negative time means no limit
    return text if factor == 1 else str(int(text) * factor)


def topic_default(name: str, broker: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The default text of a topic setting, and the broker setting it is from (None: Kafka's default)."""
    for synonym, factor in SYNONYMS.get(name, ()):
        text = broker.get(synonym)
        if text is not None:
            return _for_a_topic(name, text, factor), synonym
    return TOPIC_SETTINGS[name].default, None


def log_config(topic: Mapping[str, str], broker: Mapping[str, str]) -> LogConfig:
    """The configuration of a log from the topic's own settings and the explicit broker settings, both as text.

    Unknown topic settings are ignored: a newer controller may know them.

    Raises:
        BadSetting: a value is not allowed.
    """
    values: dict[str, Value | frozenset[str] | tuple[str, ...]] = {}
    for name, field in _FIELDS.items():
        text = topic.get(name)
        if text is None:
            text, _ = topic_default(name, broker)
        values[field] = parse(TOPIC_SETTINGS[name], text)
    policy = values["cleanup_policy"]
    assert isinstance(policy, list)
    values["cleanup_policy"] = frozenset(policy)
    fields_to_index = values["barnabas_index_keys"]
    assert isinstance(fields_to_index, list)
    values["barnabas_index_keys"] = tuple(dict.fromkeys(fields_to_index))
    small_segment = topic.get("internal.segment.bytes")
    if small_segment is not None:
        values["segment_bytes"] = parse(TOPIC_SETTINGS["internal.segment.bytes"], small_segment)
    return LogConfig(**values)  # type: ignore[arg-type]


def check_topic_settings(topic: Mapping[str, str], broker: Mapping[str, str]) -> None:
    """Validate topic settings, with the messages of Apache Kafka.

    Raises:
        BadSetting: a value is not allowed; ValueError: a name is unknown, or two settings conflict.
    """
    for name in topic:
        if name not in TOPIC_SETTINGS:
            raise ValueError(f"Unknown topic config name: {name}")
    for name, text in topic.items():
        parse(TOPIC_SETTINGS[name], text)
    config = log_config(topic, broker)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ValueError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    if config.is_schedule and "compact" in config.cleanup_policy:
        raise ValueError(
            f"conflict topic config setting {DELIVER_TO} and cleanup.policy=compact: pending records would be lost"
        )
