"""IncrementalAlterConfigs and AlterConfigs requests and the responses of Apache Kafka 4.3.1, as in admin_cases.py."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    ReplacedConfig,
    ReplacedConfigsResource,
)
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


def resource(kind: int, name: str, *changes: Change) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes],
    )


def _alter(*resources: AlterConfigsResource, answer: Answer, ours: Answer | None = None, why: str = "") -> Case:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=True)
    return Case(request, answer, ours, why)


def _t1(*changes: Change, code: ErrorCode = NONE, message: str | None = None) -> Case:
    return _alter(resource(TOPIC, "t1", *changes), answer=[("t1", code, message)])


def _broker(name: str, *changes: Change, code: ErrorCode = NONE, message: str | None = None) -> Case:
    return _alter(resource(BROKER, name, *changes), answer=[(name, code, message)])


_TYPE_IS_NOT_LIST = "Can't {} to key {} because its type is not LIST."
_DUPLICATE_KEYS = "Error due to duplicate config keys"
_ONCE = "Each resource must appear at most once."
_FIXED = "Cannot update these configs dynamically: [{}]"
_PER_BROKER = "Cannot update these configs at default cluster level, broker id must be specified: [cordoned.log.dirs]"
_NOT_IN_LOG_DIRS = "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir."
_TOO_MANY_THREADS = "Log cleaner threads cannot be increased to more than double the current value 1"
_TOO_FAST = f"org.apache.kafka.common.config.ConfigException: {_TOO_MANY_THREADS}"


def _of(kind: int, name: str, *changes: Change, code: ErrorCode = NONE, message: str | None = None) -> Case:
    return _alter(resource(kind, name, *changes), answer=[(name, code, message)])


def _bad(kind: int, key: str, value: str, message: str, code: ErrorCode = INVALID_CONFIG) -> Case:
    return _of(kind, "g", (key, SET, value), code=code, message=message)


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
    _of(GROUP, "g", ("consumer.session.timeout.ms", APPEND, "1"), code=INVALID_CONFIG,
        message=_TYPE_IS_NOT_LIST.format("APPEND", "consumer.session.timeout.ms")),
    _bad(GROUP, "nope", "1", "Unknown group config name: nope"),
    _bad(GROUP, "consumer.session.timeout.ms", "x",
         "Invalid value x for configuration consumer.session.timeout.ms: Not a number of type INT"),
    _bad(GROUP, "consumer.session.timeout.ms", "0",
         "Invalid value 0 for configuration consumer.session.timeout.ms: Value must be at least 1"),
    _bad(GROUP, "share.delivery.count.limit", "1",
         "Invalid value 1 for configuration share.delivery.count.limit: Value must be at least 2"),
    _bad(GROUP, "share.renew.acknowledge.enable", "x",
         "Invalid value x for configuration share.renew.acknowledge.enable: Expected value to be either true or false"),
    _bad(GROUP, "share.isolation.level", "x",
         "Invalid value x for configuration share.isolation.level: String must be one of: read_committed, "
         "read_uncommitted"),
    *(_bad(GROUP, "share.auto.offset.reset", text, _NO_START.format(text))
      for text in ("none", "by_duration:x", "by_duration:-PT1H")),
    *(_bad(GROUP, f"{family}.{name}", value, _BOUND.format(family, name, word, bound))
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
    _bad(GROUP, "streams.num.standby.replicas", "3",
         "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas"),
]  # fmt: skip
_OUTSIDE = "Invalid value {} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
_SUBSCRIPTIONS = [
    _of(CLIENT_METRICS, "g", ("interval.ms", SET, "100"), ("metrics", SET, "a,b"), ("match", SET, "client_id=a.*")),
    _of(CLIENT_METRICS, "g", ("metrics", SET, "*"), ("match", SET, "")),
    _of(CLIENT_METRICS, "g", ("nope", DELETE_SETTING, None)),
    _of(CLIENT_METRICS, "", ("interval.ms", SET, "100"), code=INVALID_REQUEST,
        message="Subscription name can't be empty"),
    _of(CLIENT_METRICS, "g", ("metrics", APPEND, "x"), code=INVALID_CONFIG,
        message=_TYPE_IS_NOT_LIST.format("APPEND", "metrics")),
    _bad(CLIENT_METRICS, "nope", "1", "Unknown client metrics configuration: nope", INVALID_REQUEST),
    _bad(CLIENT_METRICS, "interval.ms", "99", _OUTSIDE.format(99), INVALID_REQUEST),
    _bad(CLIENT_METRICS, "interval.ms", "3600001", _OUTSIDE.format(3600001), INVALID_REQUEST),
    _bad(CLIENT_METRICS, "interval.ms", "x",
         "Invalid value x for configuration interval.ms: Not a number of type INT"),
    *(_bad(CLIENT_METRICS, "match", text, f"Illegal client matching pattern: {text}")
      for text in ("foo=a", "client_id", "client_id=[", "client_id=a=b")),
]  # fmt: skip

ALTER = [
    _t1(),
    _t1(("retention.ms", SET, "5")),
    _t1(("retention.ms", DELETE_SETTING, None)),
    _t1(("retention.ms", DELETE_SETTING, "7")),
    _t1(("nope", DELETE_SETTING, None)),
    _t1(("cleanup.policy", APPEND, "delete")),
    _t1(("cleanup.policy", APPEND, "compact")),
    _t1(("cleanup.policy", SUBTRACT, "compact")),
    _t1(("cleanup.policy", SUBTRACT, "delete")),
    _t1(("cleanup.policy", SUBTRACT, "foo")),
    _t1(("nope", SET, "5"), code=INVALID_CONFIG, message="Unknown topic config name: nope"),
    _t1(
        ("retention.ms", SET, "x"),
        code=INVALID_CONFIG,
        message="Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    _t1(("retention.ms", SET, None), code=INVALID_REQUEST, message="Null value not supported for : retention.ms"),
    _t1(
        ("cleanup.policy", APPEND, None), code=INVALID_REQUEST, message="Null value not supported for : cleanup.policy"
    ),
    _t1(("retention.ms", APPEND, "5"), code=INVALID_CONFIG, message=_TYPE_IS_NOT_LIST.format("APPEND", "retention.ms")),
    _t1(
        ("retention.ms", SUBTRACT, "5"),
        code=INVALID_CONFIG,
        message=_TYPE_IS_NOT_LIST.format("SUBTRACT", "retention.ms"),
    ),
    _t1(("nope", APPEND, "5"), code=INVALID_CONFIG, message=_TYPE_IS_NOT_LIST.format("APPEND", "nope")),
    _t1(
        ("cleanup.policy", APPEND, "foo"),
        code=INVALID_CONFIG,
        message="Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    _t1(("retention.ms", SET, "5"), ("retention.ms", SET, "6"), code=INVALID_REQUEST, message=_DUPLICATE_KEYS),
    _t1(
        ("retention.ms", SET, "5"),
        ("retention.ms", DELETE_SETTING, None),
        code=INVALID_REQUEST,
        message=_DUPLICATE_KEYS,
    ),
    _t1(
        ("min.compaction.lag.ms", SET, "10"),
        ("max.compaction.lag.ms", SET, "5"),
        code=INVALID_CONFIG,
        message="conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    _t1(("remote.storage.enable", SET, "true"), code=INVALID_CONFIG, message=TIERED),
    _t1(
        ("cleanup.policy", SUBTRACT, "delete"),
        ("retention.ms", SET, "x"),
        code=INVALID_CONFIG,
        message="Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    _alter(
        resource(TOPIC, "t1", ("retention.ms", 4, "5")),
        answer=[("t1", ErrorCode.UNKNOWN_SERVER_ERROR, None)],
        ours=[("t1", INVALID_REQUEST, "Unknown operation 4 on retention.ms")],
        why="an operation that does not exist is the client's mistake",
    ),
    _alter(
        resource(TOPIC, "nope", ("retention.ms", SET, "5")),
        answer=[("nope", UNKNOWN_TOPIC, "The topic 'nope' does not exist.")],
    ),
    _alter(
        resource(TOPIC, "", ("retention.ms", SET, "5")),
        answer=[("", INVALID_REQUEST, "Default topic resources are not allowed.")],
    ),
    _alter(
        resource(TOPIC, "a b", ("retention.ms", SET, "5")),
        answer=[("a b", INVALID_NAME, f"Topic name is invalid: 'a b' {CHARACTERS}")],
    ),
    _alter(
        resource(TOPIC, "t1", ("retention.ms", SET, "5")),
        resource(TOPIC, "t1", ("retention.ms", SET, "5")),
        resource(TOPIC, "t2", ("retention.ms", SET, "5")),
        answer=[("t1", INVALID_REQUEST, _ONCE), ("t1", INVALID_REQUEST, _ONCE), ("t2", NONE, None)],
    ),
    _alter(
        resource(TOPIC, "nope", ("retention.ms", SET, "5")),
        resource(TOPIC, "t2", ("cleanup.policy", SUBTRACT, "delete")),
        answer=[("nope", UNKNOWN_TOPIC, "The topic 'nope' does not exist."), ("t2", NONE, None)],
    ),
    _broker("1", ("log.retention.ms", SET, "5")),
    _broker("", ("log.retention.ms", SET, "5")),
    _broker("1", ("log.retention.ms", DELETE_SETTING, None)),
    _broker("1", ("log.cleanup.policy", APPEND, "compact")),
    _broker("1", ("nope", SET, "5")),
    _broker("1", ("message.max.bytes", SET, "100")),
    _broker("1", ("node.id", DELETE_SETTING, None)),
    _broker("1", ("log.cleaner.threads", SET, "2")),
    _broker("", ("log.cleaner.backoff.ms", SET, "0")),
    _broker("1", ("log.cleaner.dedupe.buffer.size", SET, "1048577")),
    _broker("1", ("max.connections", SET, "5")),
    _broker("", ("producer.id.expiration.ms", SET, "5")),
    _broker("", ("replica.alter.log.dirs.io.max.bytes.per.second", SET, "0")),
    _broker("1", ("num.io.threads", SET, "16")),
    _broker("", ("group.consumer.assignment.interval.ms", SET, "15000")),
    _broker(
        "",
        ("group.consumer.assignment.interval.ms", SET, "15001"),
        code=INVALID_REQUEST,
        message="group.consumer.assignment.interval.ms must be less than or equal to "
        "group.consumer.max.assignment.interval.ms",
    ),
    _broker("1", ("cordoned.log.dirs", SET, "*")),
    _broker("1", ("cordoned.log.dirs", APPEND, "*")),
    _broker("1", ("cordoned.log.dirs", SET, " ")),
    *(
        _broker(name, (key, SET, value), code=INVALID_REQUEST, message=f"requirement failed: {sentence}")
        for name in ("1", "")
        for key, value, sentence in (
            ("log.retention.ms", "0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
            ("log.roll.ms", "0", "log.roll.ms must be greater than or equal to 1"),
            ("log.roll.jitter.ms", "-5", "log.roll.jitter.ms must be greater than or equal to 0"),
            (
                "log.cleaner.dedupe.buffer.size",
                "1048576",
                "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
            ),
        )
    ),
    *(
        _broker("1", ("cordoned.log.dirs", SET, value), code=INVALID_REQUEST, message=sentence)
        for value, sentence in (
            ("/nowhere,/b", f"{_NOT_IN_LOG_DIRS} Missing entries : /nowhere, /b"),
            ("*,/b", "requirement failed: When cordoned.log.dirs is set to *, it must not contain other values"),
        )
    ),
    _alter(
        resource(BROKER, "1", ("cordoned.log.dirs", SET, "/b,")),
        answer=[("1", INVALID_REQUEST, "Configuration 'cordoned.log.dirs' values must not be empty.")],
        ours=[("1", INVALID_REQUEST, f"{_NOT_IN_LOG_DIRS} Missing entries : /b, ")],
        why="an empty name is missing like any other",
    ),
    _broker("", ("cordoned.log.dirs", SET, "*"), code=INVALID_REQUEST, message=_PER_BROKER),
    _broker(
        "1",
        ("replica.alter.log.dirs.io.max.bytes.per.second", SET, "-1"),
        code=INVALID_REQUEST,
        message="Invalid value -1 for configuration replica.alter.log.dirs.io.max.bytes.per.second: "
        "Value must be at least 0",
    ),
    _broker(
        "",
        ("leader.replication.throttled.rate", SET, "x"),
        code=INVALID_REQUEST,
        message="Invalid value x for configuration leader.replication.throttled.rate: Not a number of type LONG",
    ),
    _alter(
        resource(BROKER, "1", ("log.cleaner.threads", SET, "3")),
        answer=[("1", INVALID_REQUEST, f"Invalid value {_TOO_FAST} for configuration Invalid dynamic configuration")],
        ours=[("1", INVALID_REQUEST, _TOO_MANY_THREADS)],
        why="the rest of the sentence is about Java classes",
    ),
    _broker(
        "1",
        ("num.partitions", SET, "5"),
        ("max.connections", SET, "5"),
        ("node.id", SET, "5"),
        code=INVALID_REQUEST,
        message=_FIXED.format("node.id, num.partitions"),
    ),
    _broker(
        "2",
        ("log.retention.ms", SET, "5"),
        code=INVALID_REQUEST,
        message="Unexpected broker id, expected 1, but received 2",
    ),
    _broker(
        "x", ("log.retention.ms", SET, "5"), code=INVALID_REQUEST, message="Node id must be an integer, but it is: x"
    ),
    _broker(
        "-1",
        ("log.retention.ms", SET, "5"),
        code=INVALID_REQUEST,
        message="Unexpected broker id, expected 1, but received -1",
    ),
    _broker(
        "1",
        ("log.retention.ms", SET, "x"),
        code=INVALID_REQUEST,
        message="Invalid value x for configuration log.retention.ms: Not a number of type LONG",
    ),
    _broker(
        "1",
        ("log.retention.ms", SET, None),
        code=INVALID_REQUEST,
        message="Null value not supported for : log.retention.ms",
    ),
    _broker(
        "1",
        ("log.segment.bytes", SET, "5"),
        code=INVALID_REQUEST,
        message="Invalid value 5 for configuration log.segment.bytes: Value must be at least 1048576",
    ),
    _broker(
        "1",
        ("log.message.timestamp.type", SET, "x"),
        code=INVALID_REQUEST,
        message="Invalid value x for configuration log.message.timestamp.type: String must be one of: CreateTime, "
        "LogAppendTime",
    ),
    _broker(
        "",
        ("min.insync.replicas", SET, "0"),
        code=INVALID_REQUEST,
        message="Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
    ),
    _broker(
        "1",
        ("min.insync.replicas", SET, "1"),
        code=INVALID_CONFIG,
        message="Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    ),
    _broker(
        "",
        ("min.insync.replicas", DELETE_SETTING, None),
        code=INVALID_CONFIG,
        message="Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    ),
    *(
        _broker("1", (name, SET, value), code=INVALID_REQUEST, message=_FIXED.format(name))
        for name, value in (
            ("num.partitions", "5"),
            ("node.id", "5"),
            ("log.dirs", "/x"),
            ("broker.rack", "x"),
            ("log.retention.hours", "1"),
            ("auto.create.topics.enable", "false"),
            ("log.cleaner.enable", "false"),
            ("log.retention.check.interval.ms", "5"),
        )
    ),
    *_GROUPS,
    *_SUBSCRIPTIONS,
    *(
        _alter(
            resource(kind, "g", ("nope", SET, "1")), answer=[("g", INVALID_REQUEST, f"Unknown resource type {kind}")]
        )
        for kind in (0, 3, 99)
    ),
]


# ---- AlterConfigs ----------------------------------------------------------------------------------------


def replaced(kind: int, name: str, *configs: tuple[str, str | None]) -> ReplacedConfigsResource:
    wanted = [ReplacedConfig(name=key, value=value) for key, value in configs]
    return ReplacedConfigsResource(resource_type=kind, resource_name=name, configs=wanted)


def _replace(
    kind: int, name: str, *configs: tuple[str, str | None], code: ErrorCode = NONE, message: str | None = None
) -> Case:
    request = AlterConfigsRequest(resources=[replaced(kind, name, *configs)], validate_only=True)
    return Case(request, [(name, code, message)])


_CANNOT_REMOVE = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."

REPLACE = [
    _replace(TOPIC, "t1"),
    _replace(TOPIC, "t2", ("retention.ms", "5")),
    _replace(TOPIC, "t1", ("retention.ms", None), code=INVALID_REQUEST,
             message="Null value not supported for : retention.ms"),
    _replace(TOPIC, "t1", ("nope", "1"), code=INVALID_CONFIG, message="Unknown topic config name: nope"),
    _replace(TOPIC, "t1", ("retention.ms", "1"), ("retention.ms", "2"), code=INVALID_REQUEST, message=_DUPLICATE_KEYS),
    _replace(TOPIC, "nope", ("retention.ms", "5"), code=UNKNOWN_TOPIC, message="The topic 'nope' does not exist."),
    _replace(TOPIC, "", code=INVALID_REQUEST, message="Default topic resources are not allowed."),
    _replace(TOPIC, "a b", code=INVALID_NAME, message=f"Topic name is invalid: 'a b' {CHARACTERS}"),
    _replace(BROKER, "1", ("log.retention.ms", "5")),
    _replace(BROKER, "1"),
    _replace(BROKER, "2", code=INVALID_REQUEST, message="Unexpected broker id, expected 1, but received 2"),
    _replace(BROKER, "x", code=INVALID_REQUEST, message="Node id must be an integer, but it is: x"),
    _replace(BROKER, "1", ("node.id", "5"), code=INVALID_REQUEST, message=_FIXED.format("node.id")),
    _replace(BROKER, "", ("min.insync.replicas", "1"), ("log.retention.ms", "5")),
    _replace(BROKER, "", code=INVALID_CONFIG, message=_CANNOT_REMOVE),
    _replace(BROKER, "", ("log.retention.ms", "5"), code=INVALID_CONFIG, message=_CANNOT_REMOVE),
    _replace(GROUP, "g", ("consumer.session.timeout.ms", "1"), code=INVALID_CONFIG,
             message=_BOUND.format("consumer", "session.timeout.ms", "greater", "min")),
    _replace(CLIENT_METRICS, "g", ("interval.ms", "100")),
    _replace(CLIENT_METRICS, "", code=INVALID_REQUEST, message="Subscription name can't be empty"),
    *(_replace(kind, "1", code=INVALID_REQUEST, message=f"Unknown resource type {kind}") for kind in (0, 3, 8, 99)),
]  # fmt: skip

SETTINGS_CASES = {"alter": ALTER, "replace": REPLACE}
"""By API, as CASES in admin_cases.py."""
