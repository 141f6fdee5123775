"""Admin requests and the responses of Apache Kafka 4.3.1.

They are for a cluster of one broker, id 1, num.partitions=1, default.replication.factor=1, and topics t1
(3 partitions), t2 (2 partitions, cleanup.policy=compact,delete) and c.c. They change nothing: valid requests
are validate-only.

`answer` is Kafka's response; `ours` is Barnabas' where it differs on purpose, for the reason in `why`.
A response is a list of (name, error code, message) for each topic or resource, sorted by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from tests.support.loading import topic
from tests.support.messages import message

Answer = list[tuple[str, ErrorCode, str | None]]

NONE = ErrorCode.NONE
INVALID_REQUEST = ErrorCode.INVALID_REQUEST
INVALID_CONFIG = ErrorCode.INVALID_CONFIG
INVALID_NAME = ErrorCode.INVALID_TOPIC_EXCEPTION
INVALID_PARTITIONS = ErrorCode.INVALID_PARTITIONS
INVALID_FACTOR = ErrorCode.INVALID_REPLICATION_FACTOR
INVALID_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT
POLICY = ErrorCode.POLICY_VIOLATION
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BY_HAND = "A manual partition assignment was specified, but {} was not set to -1."
TIERED = "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
LONG_NAME = "a" * 250
SOME_ID = (12345).to_bytes(16, "big")


class Case(NamedTuple):
    request: Message
    answer: Answer
    ours: Answer | None = None
    why: str = ""


def normalised(response: Message) -> Answer:
    """The compared part of a response."""
    rows: Sequence[Message] = next((getattr(response, name) for name in _ROWS if hasattr(response, name)), ())
    found = [entry for row in rows for entry in _rows(row)]
    whole = getattr(response, "error_code", ErrorCode.NONE)
    if whole or not rows:
        found.append(("", ErrorCode(whole), getattr(response, "error_message", None) or None))
    return sorted(found, key=lambda entry: (entry[0], entry[1]))


_ROWS = ("topics", "responses", "results", "replica_election_results", "entries")
_NAMES = ("resource_name", "name", "topic", "user")
_PARTITIONS = {"partitions": "partition_index", "partition_result": "partition_id"}


def _rows(row: Message) -> Answer:
    name = _name(row)
    for partitions, index in _PARTITIONS.items():
        if hasattr(row, partitions):
            return [
                (f"{name}-{getattr(partition, index)}", ErrorCode(partition.error_code), partition.error_message)
                for partition in getattr(row, partitions)
            ]
    return [(name, ErrorCode(row.error_code), row.error_message)]  # type: ignore[attr-defined]


def _name(row: Message) -> str:
    if hasattr(row, "entity"):
        return ",".join(f"{part.entity_type}={part.entity_name}" for part in row.entity)
    for field in _NAMES:
        name = getattr(row, field, None)
        if name is not None:
            return str(name)
    return str(row.topic_id.hex())  # type: ignore[attr-defined]


# ---- CreateTopics ----------------------------------------------------------------------------------------


def _create(*topics: CreatableTopic, answer: Answer) -> Case:
    return Case(CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=True), answer)


def _row_named(name: str, code: ErrorCode, message: str | None) -> Case:
    return _create(topic(name), answer=[(name, code, message)])


def _manual(
    *assignments: tuple[int, list[int]], code: ErrorCode = INVALID_ASSIGNMENT, message: str | None = None,
    count: int = -1, factor: int = -1,
) -> Case:  # fmt: skip
    """A manual assignment; `code` is the error's if there is a message."""
    answer = [("as", code if message else NONE, message)]
    return _create(topic("as", count, factor, list(assignments)), answer=answer)


def _with(*configs: tuple[str, str | None], message: str | None) -> Case:
    code = INVALID_CONFIG if message else NONE
    return _create(topic("cf", configs=list(configs)), answer=[("cf", code, message)])


CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
_NO_SUCH_BROKER = "The manual partition assignment includes broker {}, but no such broker is registered."
_NO_REPLICAS = "The manual partition assignment includes an empty replica list."
_TWICE = "The manual partition assignment includes the broker 1 more than once."
_SEQUENCE = "partitions should be a consecutive 0-based integer sequence"
_BAD_FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
_TOO_FEW_BROKERS = (
    "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because only 1 "
    "broker(s) are registered or some brokers have all their log directories cordoned."
)
_BAD_COUNT = "Number of partitions was set to an invalid non-positive value."
_TOO_MANY = "Excessively large number of partitions per request."
_DUPLICATE_NAME = "Duplicate topic name."

CREATE = [
    _row_named("fresh", NONE, None),
    _row_named("x" * 249, NONE, None),
    *(
        _row_named(name, INVALID_NAME, f"Topic name is invalid: {reason}")
        for name, reason in (
            ("", "the empty string is not allowed"),
            (".", "'.' is not allowed"),
            ("..", "'..' is not allowed"),
            *((name, f"'{name}' {CHARACTERS}") for name in ("a b", "a/b", "ä")),
            (LONG_NAME, f"the length of '{LONG_NAME}' is longer than the max allowed length 249"),
        )
    ),
    _row_named("__cluster_metadata", INVALID_REQUEST, "Creation of internal topic __cluster_metadata is prohibited."),
    _row_named("t1", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't1' already exists."),
    _row_named("c.c", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'c.c' already exists."),
    _row_named("c_c", INVALID_NAME, "Topic 'c_c' collides with existing topic: c.c"),
    _create(topic("t_1"), topic("t.1"), answer=[("t.1", NONE, None), ("t_1", NONE, None)]),
    _create(topic("d"), topic("d"), topic("e"), answer=[("d", INVALID_REQUEST, _DUPLICATE_NAME), ("e", NONE, None)]),
    _create(
        topic("z", partitions=0),
        topic("p", partitions=-2),
        topic("q", partitions=-1, replication_factor=-1),
        topic("r", replication_factor=0),
        topic("s", replication_factor=-2),
        topic("t", replication_factor=2),
        answer=[
            ("p", INVALID_PARTITIONS, _BAD_COUNT),
            ("q", NONE, None),
            ("r", INVALID_FACTOR, _BAD_FACTOR),
            ("s", INVALID_FACTOR, _BAD_FACTOR),
            ("t", INVALID_FACTOR, _TOO_FEW_BROKERS),
            ("z", INVALID_PARTITIONS, _BAD_COUNT),
        ],
    ),
    # The first error of several.
    *(
        _create(topic(name, 0, 5, configs=[("nope", "1")]), answer=[(name, code, sentence)])
        for name, code, sentence in (
            ("t1", ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't1' already exists."),
            ("a b", INVALID_NAME, f"Topic name is invalid: 'a b' {CHARACTERS}"),
            ("cf", INVALID_CONFIG, "Unknown topic config name: nope"),
        )
    ),
    _create(
        topic("bad", configs=[("nope", "1")]),
        topic("good"),
        answer=[("bad", INVALID_CONFIG, "Unknown topic config name: nope"), ("good", NONE, None)],
    ),
    # Limits.
    _create(topic("p", 10_001), answer=[("p", POLICY, _TOO_MANY)]),
    _create(topic("p", 6_000), topic("q", 6_000), answer=[("p", POLICY, _TOO_MANY), ("q", POLICY, _TOO_MANY)]),
    _create(topic("p", 10_000), answer=[("p", POLICY, "Unable to perform excessively large batch operation.")]),
    # Manual assignments.
    _manual((0, [1])),
    _manual((0, [1]), (1, [1])),
    _manual((1, [1]), (0, [1])),
    _manual((0, [1]), count=1, code=INVALID_REQUEST, message=BY_HAND.format("numPartitions")),
    _manual((0, [1]), factor=1, code=INVALID_REQUEST, message=BY_HAND.format("replication factor")),
    _manual((0, [1]), count=1, factor=1, code=INVALID_REQUEST, message=BY_HAND.format("replication factor")),
    _manual((0, [2]), message=_NO_SUCH_BROKER.format(2)),
    _manual((0, [-1]), message=_NO_SUCH_BROKER.format(-1)),
    _manual((0, [1]), (1, [1, 2]), message=_NO_SUCH_BROKER.format(2)),
    _manual((0, []), message=_NO_REPLICAS),
    _manual((0, [1, 1]), message=_TWICE),
    _manual((1, [1]), message=_SEQUENCE),
    _manual((-1, [1]), message=_SEQUENCE),
    _manual((0, [1]), (2, [1]), message=_SEQUENCE),
    _manual((0, [1]), (0, [1]), message="Found multiple manual partition assignments for partition 0"),
    # Settings.
    _with(("retention.ms", "5"), message=None),
    _with(("retention.ms", "5"), ("retention.ms", "6"), message=None),
    _with(("cleanup.policy", ""), message=None),
    _with(("cleanup.policy", "compact,compact"), message=None),
    _with(("local.retention.ms", "10"), ("retention.ms", "5"), message=None),
    _with(("internal.segment.bytes", "100"), message=None),
    _with(("nope", "1"), message="Unknown topic config name: nope"),
    _with(("nope", "1"), ("retention.ms", "x"), message="Unknown topic config name: nope"),
    *(
        _with((name, value), message=f"Invalid value {value} for configuration {name}: {reason}")
        for name, value, reason in (
            ("retention.ms", "abc", "Not a number of type LONG"),
            ("retention.ms", "", "Not a number of type LONG"),
            ("retention.ms", "-5", "Value must be at least -1"),
            ("cleanup.policy", "foo", "String must be one of: compact, delete"),
            ("segment.bytes", "1", "Value must be at least 1048576"),
            ("segment.bytes", "9999999999", "Not a number of type INT"),
            ("min.insync.replicas", "0", "Value must be at least 1"),
            ("compression.type", "lzo", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
            ("compression.gzip.level", "15", "Value must be between 1 and 9 or equal to -1"),
            ("message.timestamp.type", "x", "String must be one of: CreateTime, LogAppendTime"),
            ("preallocate", "maybe", "Expected value to be either true or false"),
            ("max.message.bytes", "3000000000", "Not a number of type INT"),
        )
    ),
    _with(("retention.ms", None), message="Null value not supported for topic configs: retention.ms"),
    _with(
        ("retention.ms", None), ("nope", None), message="Null value not supported for topic configs: retention.ms,nope"
    ),
    _with(
        ("cleanup.policy", "delete,none"),
        message="Invalid value none for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    _with(
        ("min.cleanable.dirty.ratio", "2"),
        message="Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    _with(
        ("leader.replication.throttled.replicas", "a"),
        message="Invalid value [a] for configuration leader.replication.throttled.replicas: "
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    ),
    _with(
        ("min.compaction.lag.ms", "10"),
        ("max.compaction.lag.ms", "5"),
        message="conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    _with(("remote.storage.enable", "true"), message=TIERED),
]

# ---- DeleteTopics ----------------------------------------------------------------------------------------


def _delete(*topics: tuple[str | None, bytes], answer: Answer) -> Case:
    states = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    return Case(message(DeleteTopicsRequest, topics=states, timeout_ms=10_000), answer)


_NO_NAME = "This server does not host this topic-partition."
_NO_ID = "This server does not host this topic ID."

DELETE = [
    *(
        _delete((name, ZERO_UUID), answer=[(name, UNKNOWN_TOPIC, _NO_NAME)])
        for name in ("nope", "a b", "", "__cluster_metadata")
    ),
    *(
        _delete((name, topic_id), answer=[(name or topic_id.hex(), code, sentence)])
        for name, topic_id, code, sentence in (
            (None, SOME_ID, ErrorCode.UNKNOWN_TOPIC_ID, _NO_ID),
            (None, ZERO_UUID, INVALID_REQUEST, "Neither topic name nor id were specified."),
            ("t1", SOME_ID, INVALID_REQUEST, "You may not specify both topic name and topic id."),
        )
    ),
    _delete(
        ("nope", ZERO_UUID),
        ("nope", ZERO_UUID),
        ("q", ZERO_UUID),
        answer=[("nope", INVALID_REQUEST, _DUPLICATE_NAME), ("q", UNKNOWN_TOPIC, _NO_NAME)],
    ),
    _delete(("t1", ZERO_UUID), ("t1", ZERO_UUID), answer=[("t1", INVALID_REQUEST, _DUPLICATE_NAME)]),
    _delete((None, SOME_ID), (None, SOME_ID), answer=[(SOME_ID.hex(), INVALID_REQUEST, "Duplicate topic id.")]),
]

# ---- CreatePartitions ------------------------------------------------------------------------------------


def _grow(
    *topics: tuple[str, int, Sequence[list[int]] | None], answer: Answer, ours: Answer | None = None, why: str = ""
) -> Case:
    wanted = [
        {
            "name": name,
            "count": count,
            "assignments": None if hands is None else [{"broker_ids": hand} for hand in hands],
        }
        for name, count, hands in topics
    ]
    request = message(CreatePartitionsRequest, topics=wanted, timeout_ms=10_000, validate_only=True)
    return Case(request, answer, ours, why)


_OTHER_COUNT = "Attempted to add 1 additional partition(s), but only {} assignment(s) were specified."

GROW = [
    *(_grow(("t1", 4, hands), answer=[("t1", NONE, None)]) for hands in (None, [[1]])),
    *(
        _grow(("t1", count, None), answer=[("t1", INVALID_PARTITIONS, sentence)])
        for count, sentence in (
            (3, "Topic already has 3 partition(s)."),
            (2, "The topic t1 currently has 3 partition(s); 2 would not be an increase."),
            (-1, "The topic t1 currently has 3 partition(s); -1 would not be an increase."),
        )
    ),
    *(
        _grow(("t1", 4, hands), answer=[("t1", INVALID_ASSIGNMENT, sentence)])
        for hands, sentence in (
            ([], _OTHER_COUNT.format(0)),
            ([[1], [1]], _OTHER_COUNT.format(2)),
            ([[2]], _NO_SUCH_BROKER.format(2)),
            ([[1, 2]], _NO_SUCH_BROKER.format(2)),
            ([[]], _NO_REPLICAS),
            ([[1, 1]], _TWICE),
        )
    ),
    *(_grow((name, 3, None), answer=[(name, UNKNOWN_TOPIC, None)]) for name in ("nope", "a b")),
    _grow(
        ("t1", 4, None),
        ("t1", 5, None),
        ("t2", 9, None),
        answer=[("t1", INVALID_REQUEST, _DUPLICATE_NAME), ("t2", NONE, None)],
    ),
    _grow(
        ("t1", 100_001, None),
        answer=[("t1", ErrorCode.UNKNOWN_SERVER_ERROR, None)],
        ours=[("t1", POLICY, _TOO_MANY)],
        why="the code and the sentence that Kafka has for the same thing in CreateTopics",
    ),
]

CASES = {"create": CREATE, "delete": DELETE, "grow": GROW}
"""By API; those of IncrementalAlterConfigs are in config_cases.py."""
