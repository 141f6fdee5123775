"""The table of APIs and request and response headers (protocol/api.py)."""

from __future__ import annotations

import pytest

from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, encode
from protocol.errors import MalformedRequest
from protocol.messages.headers import RequestHeader, ResponseHeader


@pytest.mark.parametrize("key", APIS, ids=lambda key: ApiKey(key).name)
def test_an_api_has_the_name_of_its_key(key: int) -> None:
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
    """Also for versions newer than ours: a client of Kafka 4.4 starts with ApiVersions 5."""
    assert request_header_version(key, version) == request_header
    assert response_header_version(key, version) == response_header


@pytest.mark.parametrize("key", [-1, 4, 95, 32_767])
def test_an_unknown_api_is_malformed(key: int) -> None:
    with pytest.raises(MalformedRequest, match=f"API key {key} is not known"):
        request_header_version(key, 0)


def test_the_client_id_of_a_request_header_is_never_compact() -> None:
    """Also in version 2, so that a broker can read it before it knows the version."""
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=7, client_id="me")
    assert encode(header, 1) == b"\0\x12\0\3\0\0\0\7\0\2me"
    assert encode(header, 2) == b"\0\x12\0\3\0\0\0\7\0\2me\0"
    for version in (1, 2):
        assert decode(RequestHeader, version, encode(header, version)) == header
    header.client_id = None
    assert encode(header, 2) == b"\0\x12\0\3\0\0\0\7\xff\xff\0"


def test_a_response_header_is_a_correlation_id() -> None:
    assert encode(ResponseHeader(correlation_id=7), 0) == b"\0\0\0\7"
    assert encode(ResponseHeader(correlation_id=7), 1) == b"\0\0\0\7\0"
