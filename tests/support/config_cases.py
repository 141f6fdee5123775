"""IncrementalAlterConfigs and AlterConfigs requests and the responses of Apache Kafka 4.3.1, as in admin_cases.py."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages import admin
from tests.support.admin_cases import (
    CHARACTERS,
    INVALID_CONFIG,
    INVALID_NAME,
    INVALID_REQUEST,
    NONE,
    TIERED,
    UNKNOWN_TOPIC,
    Answer,
    Case,
)

SET, DELETE_SETTING, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
Change = tuple[str, int, str | None]


def resource(kind: int, name: str, *changes: Change) -> admin.AlterConfigsResource:
    return admin.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[admin.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes],
    )


def _alter(*resources: admin.AlterConfigsResource, answer: Answer, ours: Answer | None = None, why: str = "") -> Case:
    request = admin.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=True)
    return Case(request, answer, ours, why)


def _of(kind: int, name: str, *changes: Change, code: ErrorCode = INVALID_CONFIG, message: str | None = None) -> Case:
    """One resource; `code` is the error's if there is a message."""
    return _alter(resource(kind, name, *changes), answer=[(name, code if message else NONE, message)])


def _t1(*changes: Change, code: ErrorCode = INVALID_CONFIG, message: str | None = None) -> Case:
    return _of(TOPIC, "t1", *changes, code=code, message=message)


def _broker(name: str, *changes: Change, message: str | None = None) -> Case:
    return _of(BROKER, name, *changes, code=INVALID_REQUEST, message=message)


def _set(kind: int, key: str, value: str, message: str, code: ErrorCode = INVALID_CONFIG) -> Case:
    return _of(kind, "g", (key, SET, value), code=code, message=message)


def _invalid(key: str, value: str, reason: str) -> str:
    return f"Invalid value {value} for configuration {key}: {reason}"


_RETENTION = ("retention.ms", SET, "5")
_NO_LONG = "Not a number of type LONG"
_TYPE_IS_NOT_LIST = "Can't {} to key {} because its type is not LIST."
_DUPLICATE_KEYS = "Error due to duplicate config keys"
_ONCE = "Each resource must appear at most once."
_FIXED = "Cannot update these configs dynamically: [{}]"
_PER_BROKER = "Cannot update these configs at default cluster level, broker id must be specified: [cordoned.log.dirs]"
_CANNOT_ALTER = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
_CANNOT_REMOVE = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
_NOT_IN_LOG_DIRS = "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir."
_NOT_ONLY_ALL = "requirement failed: When cordoned.log.dirs is set to *, it must not contain other values"
_ASSIGNMENT_INTERVAL = (
    "group.{0}.assignment.interval.ms must be less than or equal to group.{0}.max.assignment.interval.ms"
)
_THREADS = "Dynamic thread count update validation failed for {}={}, value should {} the current value {}"
_REFUSED_CHANGES = [
    ("log.cleaner.threads", "3", "Log cleaner threads cannot be increased to more than double the current value 1"),
    *(
        (name, value, _THREADS.format(name, value, bound, current))
        for name, value, bound, current in (
            ("background.threads", "4", "be at least half", 10),
            ("num.io.threads", "17", "not be greater than double", 8),
            ("num.network.threads", "7", "not be greater than double", 3),
            ("num.recovery.threads.per.data.dir", "5", "not be greater than double", 2),
            ("num.replica.fetchers", "3", "not be greater than double", 1),
            ("remote.log.manager.copier.thread.pool.size", "21", "not be greater than double", 10),
            ("remote.log.reader.threads", "4", "be at least half", 10),
        )
    ),
    *((name, "0", f"Invalid {name} 0") for name in ("max.connections", "max.connection.creation.rate")),
]
_NO_CONFIG = (
    "Invalid value org.apache.kafka.common.config.ConfigException: {} for configuration Invalid dynamic configuration"
)

_NO_START = (
    "Invalid value {0} for configuration share.auto.offset.reset: Invalid value `{0}` for configuration "
    "share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format "
    "'by_duration:<PnDTnHnMn.nS>'."
)
_BOUND = "{0}.{1} must be {2} than or equal to group.{0}.{3}.{1}"
_GROUPS = [
    _of(GROUP, "g"),
    _of(GROUP, "a b", ("consumer.session.timeout.ms", SET, "50000")),
    _of(GROUP, "g", ("nope", DELETE_SETTING, None)),
    _of(GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "15000"), ("consumer.assignment.interval.ms", SET, "0")),
    _of(GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:PT1H"), ("streams.num.standby.replicas", SET, "2")),
    _of(GROUP, "", ("consumer.session.timeout.ms", SET, "45000"), code=INVALID_REQUEST,
        message="Default group resources are not allowed."),
    _of(GROUP, "g", ("consumer.session.timeout.ms", APPEND, "1"),
        message=_TYPE_IS_NOT_LIST.format("APPEND", "consumer.session.timeout.ms")),
    _set(GROUP, "nope", "1", "Unknown group config name: nope"),
    *(_set(GROUP, name, value, _invalid(name, value, reason)) for name, value, reason in (
        ("consumer.session.timeout.ms", "x", "Not a number of type INT"),
        ("consumer.session.timeout.ms", "0", "Value must be at least 1"),
        ("share.delivery.count.limit", "1", "Value must be at least 2"),
        ("share.renew.acknowledge.enable", "x", "Expected value to be either true or false"),
        ("share.isolation.level", "x", "String must be one of: read_committed, read_uncommitted"),
    )),
    *(_set(GROUP, "share.auto.offset.reset", text, _NO_START.format(text))
      for text in ("none", "by_duration:x", "by_duration:-PT1H")),
    *(_set(GROUP, f"{family}.{name}", value, _BOUND.format(family, name, word, bound))
      for family, name, value, word, bound in (
          ("consumer", "session.timeout.ms", "1", "greater", "min"),
          ("consumer", "session.timeout.ms", "100000", "less", "max"),
          ("consumer", "heartbeat.interval.ms", "50000", "less", "max"),
          ("consumer", "assignment.interval.ms", "50000", "less", "max"),
          ("share", "heartbeat.interval.ms", "1", "greater", "min"),
          ("share", "record.lock.duration.ms", "100000", "less", "max"),
          ("share", "partition.max.record.locks", "5000", "less", "max"),
          ("streams", "session.timeout.ms", "1", "greater", "min"),
      )),
    _set(GROUP, "streams.num.standby.replicas", "3",
         "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas"),
]  # fmt: skip
_OUTSIDE = "Invalid value {} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
_SUBSCRIPTIONS = [
    _of(CLIENT_METRICS, "g", ("interval.ms", SET, "100"), ("metrics", SET, "a,b"), ("match", SET, "client_id=a.*")),
    _of(CLIENT_METRICS, "g", ("metrics", SET, "*"), ("match", SET, "")),
    _of(CLIENT_METRICS, "g", ("nope", DELETE_SETTING, None)),
    _of(CLIENT_METRICS, "", ("interval.ms", SET, "100"), code=INVALID_REQUEST,
        message="Subscription name can't be empty"),
    _of(CLIENT_METRICS, "g", ("metrics", APPEND, "x"),
        message=_TYPE_IS_NOT_LIST.format("APPEND", "metrics")),
    _set(CLIENT_METRICS, "nope", "1", "Unknown client metrics configuration: nope", INVALID_REQUEST),
    _set(CLIENT_METRICS, "interval.ms", "99", _OUTSIDE.format(99), INVALID_REQUEST),
    _set(CLIENT_METRICS, "interval.ms", "3600001", _OUTSIDE.format(3600001), INVALID_REQUEST),
    _set(CLIENT_METRICS, "interval.ms", "x",
         "Invalid value x for configuration interval.ms: Not a number of type INT"),
    *(_set(CLIENT_METRICS, "match", text, f"Illegal client matching pattern: {text}")
      for text in ("foo=a", "client_id", "client_id=[", "client_id=a=b")),
]  # fmt: skip

_SET_ON_BROKERS: list[tuple[str, str, str | None, str | None]] = [
    ("1", "log.retention.ms", "5", None),
    ("", "log.retention.ms", "5", None),
    ("1", "nope", "5", None),
    ("1", "message.max.bytes", "100", None),
    ("1", "log.cleaner.threads", "2", None),
    ("", "log.cleaner.backoff.ms", "0", None),
    ("1", "log.cleaner.dedupe.buffer.size", "1048577", None),
    ("1", "max.connections", "5", None),
    ("", "producer.id.expiration.ms", "5", None),
    ("", "replica.alter.log.dirs.io.max.bytes.per.second", "0", None),
    ("1", "num.io.threads", "16", None),
    ("", "group.consumer.assignment.interval.ms", "15000", None),
    *(
        ("", f"group.{kind}.assignment.interval.ms", "15001", _ASSIGNMENT_INTERVAL.format(kind))
        for kind in ("consumer", "share", "streams")
    ),
    ("1", "cordoned.log.dirs", "*", None),
    ("1", "cordoned.log.dirs", " ", None),
    ("1", "cordoned.log.dirs", "*,*", None),
    ("1", "cordoned.log.dirs", "/nowhere,/b", f"{_NOT_IN_LOG_DIRS} Missing entries : /nowhere, /b"),
    ("1", "cordoned.log.dirs", "*,/b", _NOT_ONLY_ALL),
    ("", "cordoned.log.dirs", "*", _PER_BROKER),
    ("1", "log.retention.ms", None, "Null value not supported for : log.retention.ms"),
    ("2", "log.retention.ms", "5", "Unexpected broker id, expected 1, but received 2"),
    *(
        (name, "log.retention.ms", "5", f"Node id must be an integer, but it is: {name}")
        for name in ("x", "0_1", " 1", "1 ")
    ),
    ("-1", "log.retention.ms", "5", "Unexpected broker id, expected 1, but received -1"),
    *(
        (broker, name, value, f"requirement failed: {name} must be {bound}")
        for broker in ("1", "")
        for name, value, bound in (
            ("log.retention.ms", "0", "unlimited (-1) or, greater than or equal to 1"),
            ("log.roll.ms", "0", "greater than or equal to 1"),
            ("log.roll.jitter.ms", "-5", "greater than or equal to 0"),
            ("log.cleaner.dedupe.buffer.size", "1048576", "at least 1MB per cleaner thread."),
        )
    ),
    *(
        (broker, name, value, _invalid(name, value, reason))
        for broker, name, value, reason in (
            ("1", "replica.alter.log.dirs.io.max.bytes.per.second", "-1", "Value must be at least 0"),
            ("", "leader.replication.throttled.rate", "x", _NO_LONG),
            ("1", "log.retention.ms", "x", _NO_LONG),
            ("1", "log.segment.bytes", "5", "Value must be at least 1048576"),
            ("1", "log.message.timestamp.type", "x", "String must be one of: CreateTime, LogAppendTime"),
            ("", "min.insync.replicas", "0", "Value must be at least 1"),
            ("1", "num.network.threads", "0", "Value must be at least 1"),
            ("", "group.coordinator.cached.buffer.max.bytes", "1", "Value must be at least 524288"),
        )
    ),
    *(
        ("1", name, "5", _FIXED.format(name))
        for name in ("num.partitions", "node.id", "log.retention.check.interval.ms")
    ),
    *(("1", name, "false", _FIXED.format(name)) for name in ("auto.create.topics.enable", "log.cleaner.enable")),
    ("1", "log.dirs", "/x", _FIXED.format("log.dirs")),
    ("1", "broker.rack", "x", _FIXED.format("broker.rack")),
    ("1", "log.retention.hours", "1", _FIXED.format("log.retention.hours")),
]
"""Broker, config, value, and the error's message."""

ALTER = [
    _t1(),
    _t1(("retention.ms", SET, "5")),
    _t1(("retention.ms", DELETE_SETTING, None)),
    _t1(("retention.ms", DELETE_SETTING, "7")),
    _t1(("nope", DELETE_SETTING, None)),
    *(
        _t1(("cleanup.policy", how, value))
        for how in (APPEND, SUBTRACT)
        for value in ("delete", "compact", "compact,", "compact,,", ",", "")
        if how == SUBTRACT or value
    ),
    *(
        _t1(("cleanup.policy", APPEND, value), message="Configuration 'cleanup.policy' values must not be empty.")
        for value in ("", ",compact")
    ),
    _t1(("cleanup.policy", SUBTRACT, "foo")),
    _t1(("leader.replication.throttled.replicas", SET, "0:1,,1:1")),
    _t1(("nope", SET, "5"), message="Unknown topic config name: nope"),
    _t1(("retention.ms", SET, "x"), message=_invalid("retention.ms", "x", _NO_LONG)),
    *(
        _t1((name, how, None), code=INVALID_REQUEST, message=f"Null value not supported for : {name}")
        for name, how in (("retention.ms", SET), ("cleanup.policy", APPEND))
    ),
    *(
        _t1((name, how, "5"), message=_TYPE_IS_NOT_LIST.format(word, name))
        for name, how, word in (
            ("retention.ms", APPEND, "APPEND"),
            ("retention.ms", SUBTRACT, "SUBTRACT"),
            ("nope", APPEND, "APPEND"),
        )
    ),
    _t1(
        ("cleanup.policy", APPEND, "foo"),
        message=_invalid("cleanup.policy", "foo", "String must be one of: compact, delete"),
    ),
    *(
        _t1(("retention.ms", SET, "5"), other, code=INVALID_REQUEST, message=_DUPLICATE_KEYS)
        for other in (("retention.ms", SET, "6"), ("retention.ms", DELETE_SETTING, None))
    ),
    _t1(
        ("min.compaction.lag.ms", SET, "10"),
        ("max.compaction.lag.ms", SET, "5"),
        message="conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    _t1(("remote.storage.enable", SET, "true"), message=TIERED),
    _t1(
        ("cleanup.policy", SUBTRACT, "delete"),
        ("retention.ms", SET, "x"),
        message=_invalid("retention.ms", "x", _NO_LONG),
    ),
    _alter(
        resource(TOPIC, "t1", ("retention.ms", 4, "5")),
        answer=[("t1", ErrorCode.UNKNOWN_SERVER_ERROR, None)],
        ours=[("t1", INVALID_REQUEST, "Unknown operation 4 on retention.ms")],
        why="an operation that does not exist is the client's mistake",
    ),
    _of(TOPIC, "nope", _RETENTION, code=UNKNOWN_TOPIC, message="The topic 'nope' does not exist."),
    _of(TOPIC, "", _RETENTION, code=INVALID_REQUEST, message="Default topic resources are not allowed."),
    _of(TOPIC, "a b", _RETENTION, code=INVALID_NAME, message=f"Topic name is invalid: 'a b' {CHARACTERS}"),
    _alter(
        *(resource(TOPIC, name, _RETENTION) for name in ("t1", "t1", "t2")),
        answer=[("t1", INVALID_REQUEST, _ONCE), ("t1", INVALID_REQUEST, _ONCE), ("t2", NONE, None)],
    ),
    _alter(
        resource(TOPIC, "nope", _RETENTION),
        resource(TOPIC, "t2", ("cleanup.policy", SUBTRACT, "delete")),
        answer=[("nope", UNKNOWN_TOPIC, "The topic 'nope' does not exist."), ("t2", NONE, None)],
    ),
    *(_broker("1", (name, DELETE_SETTING, None)) for name in ("log.retention.ms", "node.id")),
    *(
        _broker("1", (name, APPEND, value))
        for name, value in (("log.cleanup.policy", "compact"), ("cordoned.log.dirs", "*"))
    ),
    *(
        _of(BROKER, node, ("node.id", SET, "5"), (name, how, "5"), message=sentence.format(name))
        for node, name, how, sentence in (
            ("1", "log.retention.hours", APPEND, "Config value append is not allowed for config key: {}"),
            ("", "min.insync.replicas", SUBTRACT, "Config value subtract is not allowed for config key: {}"),
            ("1", "leader.replication.throttled.rate", SUBTRACT, "Unknown config name: {}"),
            ("", "listener.name.plaintext.max.connections", APPEND, "Unknown config name: {}"),
        )
    ),
    *(_broker(broker, (name, SET, value), message=sentence) for broker, name, value, sentence in _SET_ON_BROKERS),
    _broker(
        "1",
        *((name, SET, "5") for name in ("num.partitions", "max.connections", "node.id")),
        message=_FIXED.format("node.id, num.partitions"),
    ),
    _alter(
        resource(BROKER, "1", ("cordoned.log.dirs", SET, "/b,")),
        answer=[("1", INVALID_REQUEST, "Configuration 'cordoned.log.dirs' values must not be empty.")],
    ),
    *(
        _alter(
            resource(BROKER, "1", (name, SET, value)),
            answer=[("1", INVALID_REQUEST, _NO_CONFIG.format(sentence))],
            ours=[("1", INVALID_REQUEST, sentence)],
            why="the rest of the sentence is about Java classes",
        )
        for name, value, sentence in _REFUSED_CHANGES
    ),
    *(
        _alter(
            resource(BROKER, node, (name, SET, "5")),
            answer=[(node, NONE, None)],
        )
        for node, name in (("", "max.connection.creation.rate"), ("1", "listener.name.plaintext.max.connections"))
    ),
    _of(BROKER, "1", ("min.insync.replicas", SET, "1"), message=_CANNOT_ALTER),
    _of(BROKER, "", ("min.insync.replicas", DELETE_SETTING, None), message=_CANNOT_REMOVE),
    *_GROUPS,
    *_SUBSCRIPTIONS,
    *(
        _of(kind, "g", ("nope", SET, "1"), code=INVALID_REQUEST, message=f"Unknown resource type {kind}")
        for kind in (0, 3, 99)
    ),
]


# ---- AlterConfigs ----------------------------------------------------------------------------------------


def replaced(kind: int, name: str, *configs: tuple[str, str | None]) -> admin.ReplacedConfigsResource:
    wanted = [admin.ConfigEntry(name=key, value=value) for key, value in configs]
    return admin.ReplacedConfigsResource(resource_type=kind, resource_name=name, configs=wanted)


def _replace(
    kind: int, name: str, *configs: tuple[str, str | None], code: ErrorCode = INVALID_CONFIG, message: str | None = None
) -> Case:
    request = admin.AlterConfigsRequest(resources=[replaced(kind, name, *configs)], validate_only=True)
    return Case(request, [(name, code if message else NONE, message)])


_INVALID: list[tuple[int, str, list[tuple[str, str | None]], str]] = [
    (TOPIC, "t1", [("retention.ms", None)], "Null value not supported for : retention.ms"),
    (TOPIC, "t1", [("b", None), ("a", None)], "Null value not supported for : b, a"),
    (TOPIC, "t1", [("retention.ms", "1"), ("retention.ms", "2")], _DUPLICATE_KEYS),
    (TOPIC, "", [], "Default topic resources are not allowed."),
    (BROKER, "2", [], "Unexpected broker id, expected 1, but received 2"),
    (BROKER, "x", [], "Node id must be an integer, but it is: x"),
    (BROKER, "1", [("node.id", "5")], _FIXED.format("node.id")),
    (CLIENT_METRICS, "", [], "Subscription name can't be empty"),
    *((kind, "1", [], f"Unknown resource type {kind}") for kind in (0, 3, 8, 99)),
]

REPLACE = [
    _replace(TOPIC, "t1"),
    _replace(TOPIC, "t2", ("retention.ms", "5")),
    _replace(TOPIC, "t1", ("nope", "1"), message="Unknown topic config name: nope"),
    _replace(TOPIC, "nope", ("retention.ms", "5"), code=UNKNOWN_TOPIC, message="The topic 'nope' does not exist."),
    _replace(TOPIC, "a b", code=INVALID_NAME, message=f"Topic name is invalid: 'a b' {CHARACTERS}"),
    _replace(BROKER, "1", ("log.retention.ms", "5")),
    _replace(BROKER, "1"),
    _replace(BROKER, "", ("min.insync.replicas", "1"), ("log.retention.ms", "5")),
    _replace(BROKER, "", message=_CANNOT_REMOVE),
    _replace(BROKER, "", ("log.retention.ms", "5"), message=_CANNOT_REMOVE),
    _replace(
        GROUP,
        "g",
        ("consumer.session.timeout.ms", "1"),
        message=_BOUND.format("consumer", "session.timeout.ms", "greater", "min"),
    ),
    _replace(CLIENT_METRICS, "g", ("interval.ms", "100")),
    *(
        _replace(kind, name, *configs, code=INVALID_REQUEST, message=sentence)
        for kind, name, configs, sentence in _INVALID
    ),
]

SETTINGS_CASES = {"alter": ALTER, "replace": REPLACE}
"""By API, as CASES in admin_cases.py."""
