"""protocol/api.py: the table of APIs and the headers."""

from __future__ import annotations

import pytest

from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, encode
from protocol.errors import MalformedRequest
from protocol.messages.headers import RequestHeader, ResponseHeader

# Lowest and highest version of Kafka 4.3, and the first flexible one.
RANGES = {
    ApiKey.PRODUCE: (3, 13, 9),
    ApiKey.FETCH: (4, 18, 12),
    ApiKey.LIST_OFFSETS: (1, 11, 6),
    ApiKey.METADATA: (0, 13, 9),
    ApiKey.OFFSET_COMMIT: (2, 10, 8),
    ApiKey.OFFSET_FETCH: (1, 10, 6),
    ApiKey.FIND_COORDINATOR: (0, 6, 3),
    ApiKey.JOIN_GROUP: (0, 9, 6),
    ApiKey.HEARTBEAT: (0, 4, 4),
    ApiKey.LEAVE_GROUP: (0, 5, 4),
    ApiKey.SYNC_GROUP: (0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: (0, 6, 5),
    ApiKey.LIST_GROUPS: (0, 5, 3),
    ApiKey.API_VERSIONS: (0, 4, 3),
    ApiKey.CREATE_TOPICS: (2, 7, 5),
    ApiKey.DELETE_TOPICS: (1, 6, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 6, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3, 2),
    ApiKey.DELETE_GROUPS: (0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, 1),
    ApiKey.OFFSET_DELETE: (0, 0, None),
    ApiKey.ALTER_PARTITION: (2, 3, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, 0),
    ApiKey.BROKER_REGISTRATION: (0, 4, 0),
    ApiKey.BROKER_HEARTBEAT: (0, 2, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, 0),
}


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_request_and_answer_agree_on_key_and_versions(key: int) -> None:
    """RULE 3."""
    assert set(RANGES) <= set(APIS)
    for message in APIS[key]:
        assert key == message.API_KEY
        found = message.MIN_VERSION, message.MAX_VERSION, message.FLEXIBLE_SINCE
        assert found == RANGES.get(ApiKey(key), found)
    stem = APIS[key].request.__name__.removesuffix("Request")
    assert APIS[key].response.__name__ == f"{stem}Response"
    assert stem.lower() == ApiKey(key).name.replace("_", "").lower()


@pytest.mark.parametrize(
    ("key", "version", "request_header", "response_header"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.FETCH, 12, 2, 1),
        (ApiKey.METADATA, 0, 1, 0),
        (ApiKey.DESCRIBE_CLUSTER, 0, 2, 1),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 3, 2, 0),
        (ApiKey.API_VERSIONS, 5, 2, 0),
        (ApiKey.API_VERSIONS, 32_767, 2, 0),
    ],
)
def test_header_versions_follow_the_flexible_versions(
    key: ApiKey, version: int, request_header: int, response_header: int
) -> None:
    """RULE 2, and versions newer than ours: a client of Kafka 4.4 begins with ApiVersions 5."""
    assert request_header_version(key, version) == request_header
    assert response_header_version(key, version) == response_header


@pytest.mark.parametrize("key", [-1, 4, 95, 32_767])
def test_an_unknown_api_has_no_header(key: int) -> None:
    """There is no telling how to read on, so the connection cannot be kept."""
    with pytest.raises(MalformedRequest, match=f"API key {key} is not known"):
        request_header_version(key, 0)


def test_a_request_header_keeps_the_client_id_in_the_old_form() -> None:
    """Also in version 2, so that a broker can read it before it knows the version."""
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=7, client_id="me")
    assert encode(header, 1) == b"\0\x12\0\3\0\0\0\7\0\2me"
    assert encode(header, 2) == b"\0\x12\0\3\0\0\0\7\0\2me\0"
    for version in (1, 2):
        assert decode(RequestHeader, version, encode(header, version)) == header
    header.client_id = None
    assert encode(header, 2) == b"\0\x12\0\3\0\0\0\7\xff\xff\0"


def test_a_response_header_is_a_correlation_id() -> None:
    """And tagged fields in version 1."""
    assert encode(ResponseHeader(correlation_id=7), 0) == b"\0\0\0\7"
    assert encode(ResponseHeader(correlation_id=7), 1) == b"\0\0\0\7\0"
