"""The table of APIs: the request and response class of each API key, and header versions.

RULES    1. An API is a request class in `messages/` and the response class that names it.
         2. The response to ApiVersions always has header version 0, because the client does not know the broker's
            versions yet.
NOT HERE Which APIs and versions this broker serves (`broker/api_table.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, MalformedRequest
from protocol.messages import (
    acls,
    admin,
    cluster,
    consumer_groups,
    delegation_tokens,
    forwarding,
    groups,
    logs,
    metadata,
    produce_fetch,
    quorum,
    quotas_scram,
    raft,
    sasl,
    search,
    telemetry,
    transactions,
)
from protocol.schema import Message, blank


class ApiKey(IntEnum):
    """The API keys of the messages here, with Kafka's names; from 30000 on, APIs of this broker alone."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    SEARCH_RECORDS = 30001


class Api(NamedTuple):
    """The messages of one API."""

    request: type[Message]
    response: type[Message]


_MODULES = (
    acls, admin, cluster, consumer_groups, delegation_tokens, forwarding,
    groups, logs, metadata, produce_fetch, quorum, quotas_scram, raft,
    sasl, search, telemetry, transactions,
)  # fmt: skip

APIS: Final[dict[int, Api]] = {
    response.API_KEY: Api(response.REQUEST, response)
    for module in _MODULES
    for response in vars(module).values()
    if getattr(response, "REQUEST", None) is not None
}


def api_name(api_key: int) -> str:
    """Kafka's name of an API, such as ListOffsets."""
    return "".join([word.capitalize() for word in ApiKey(api_key).name.split("_")])


def error_response(api_key: int, code: ErrorCode, message: str | None = None) -> Message:
    """The response with an error for the whole request; its other fields are empty or have their defaults."""
    error = {"error_code": code} if message is None else {"error_code": code, "error_message": message}
    return blank(APIS[api_key].response, **error)


def request_header_version(api_key: int, api_version: int) -> int:
    """2 for a flexible request, else 1, also for unknown higher versions; an unknown API raises MalformedRequest."""
    return 2 if _is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """1 for a flexible response, else 0; always 0 for ApiVersions."""
    return 1 if api_key != ApiKey.API_VERSIONS and _is_flexible(api_key, api_version) else 0


def _is_flexible(api_key: int, api_version: int) -> bool:
    if api_key not in APIS:
        raise MalformedRequest(f"API key {api_key} is not known")
    return api_version >= APIS[api_key].request.FLEXIBLE_SINCE
