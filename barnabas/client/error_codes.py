"""Error codes of the cluster, as far as reading and writing records meet them.

RULES    1. A code that RETRIABLE names ends by itself: the metadata is asked for again, then the request.
         2. Every other code becomes one sentence that says what to do.
"""

from __future__ import annotations

from barnabas.client.errors import ClientError

OFFSET_OUT_OF_RANGE = 1
LEADER_NOT_AVAILABLE = 5
MESSAGE_TOO_LARGE = 10
DUPLICATE_SEQUENCE_NUMBER = 46

RETRIABLE = {
    3: "the topic or partition is unknown",
    LEADER_NOT_AVAILABLE: "the partition has no leader",
    6: "the leader has changed",
    7: "the request timed out",
    9: "the replica is not available",
    14: "the coordinator is loading",
    15: "the coordinator is not available",
    16: "the coordinator has changed",
    19: "fewer replicas are in sync than min.insync.replicas",
    20: "fewer replicas are in sync than min.insync.replicas, after the append",
    51: "the transaction's end is being written",
    56: "the leader's disk has failed or is full",
    74: "the leader's epoch has changed",
    75: "the leader does not know its epoch yet",
}
_SENTENCES = {
    2: "The cluster says that a batch is corrupt",
    MESSAGE_TOO_LARGE: "A record is larger than max.message.bytes of the topic: raise it there",
    17: "The cluster refuses the topic's name",
    29: "The cluster denies the topic: grant the right on it with barnabas acls",
    30: "The cluster denies the group: grant Read on it with barnabas acls",
    31: "The cluster denies it: grant Write on the topic with barnabas acls",
    32: "The cluster refuses a timestamp: see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    43: "The cluster writes in a format from before Kafka 0.11: set log.message.format.version there",
    45: "A batch before this one is missing: start the verb again",
    47: "Another producer has the same transactional id, and has fenced this one",
    50: "transaction.max.timeout.ms of the cluster is less than 15 minutes: raise it there",
    53: "The cluster denies the transactional id: grant Write on it with barnabas acls",
    76: "The cluster does not know this compression: choose another with --compression",
    90: "Another producer has the same transactional id, and has fenced this one",
    87: (
        "The cluster refuses a record, such as one without key for a compacted topic, or one for a schedule topic that has "
        "neither key nor value, or whose deliver-at or deliver-after is wrong or too late"
    ),
}

NAMES = {
    -1: "UNKNOWN_SERVER_ERROR",
    0: "NONE",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    39: "INVALID_REPLICA_ASSIGNMENT",
    128: "INVALID_REGULAR_EXPRESSION",
    129: "REBOOTSTRAP_REQUIRED",
    130: "STREAMS_INVALID_TOPOLOGY",
    131: "STREAMS_INVALID_TOPOLOGY_EPOCH",
    132: "STREAMS_TOPOLOGY_FENCED",
    133: "SHARE_SESSION_LIMIT_REACHED",
    134: "GROUP_DELETION_FAILED",
    135: "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED",
    136: "CONTROLLER_ID_NOT_REGISTERED",
}
"""Kafka's names of errors that kafka-python names otherwise, or does not know."""


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    from barnabas.client.kafka_python import prepare

    prepare()
    from kafka.errors import for_code

    return NAMES.get(code) or str(for_code(code).message)


def is_denial(name: str) -> bool:
    """Whether the error with this name says that a right is missing."""
    return name.endswith("AUTHORIZATION_FAILED")


def refusal(code: int, about: str) -> ClientError:
    """The error of a code, about a topic or partition."""
    sentence = _SENTENCES.get(code) or RETRIABLE.get(code) or f"The cluster answers {error_name(code)}"
    return ClientError(f"{about}: {sentence}.")
