"""Envelope requests on the controller listener, as Apache Kafka's brokers forward them; the same on Apache Kafka.

Every request goes to this broker and to Apache Kafka 4.3: the expectations are Kafka's responses.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from broker.handlers.quorum.envelopes import FORWARDED
from protocol.api import ApiKey, request_header_version
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest, IncrementalAlterConfigsRequest
from protocol.messages.cluster import DescribeQuorumRequest, ListPartitionReassignmentsRequest
from protocol.messages.forwarding import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from protocol.messages.quorum import AllocateProducerIdsRequest, BrokerHeartbeatRequest
from protocol.messages.quotas_scram import AlterClientQuotasRequest
from protocol.schema import Message
from tests.support.config_cases import SET, TOPIC, resource
from tests.support.follower_harness import Cluster
from tests.support.messages import message
from tests.support.raw_client import RawClient

E = ErrorCode
ANONYMOUS = b"\0\0" + encode(DefaultPrincipalData(type="User", name="ANONYMOUS", token_authenticated=False), 0)
HERE = bytes((127, 0, 0, 1))
FROM_KAFKA = base64.b64decode(
    "ADoAAAAAAAAAATEALgATAAcAAAADAAhhbi1hZG1pbgACCmZvcndhcmRlZAAAAAIAAQEBAAAAH0AAABQAAAVVc2VyCkFOT05ZTU9VUwAABX8AAAEA"
)
"""The bytes that a broker of Apache Kafka 4.3.1 sent to its controller when kafka-python's admin client created a topic."""


def opened_up(request: Message, version: int) -> bytes:
    """A request as a client sends it, without its length."""
    key = request.API_KEY
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="c")
    return encode(header, request_header_version(key, version)) + encode(request, version)


def envelope(data: bytes, principal: bytes | None = ANONYMOUS, address: bytes = HERE) -> EnvelopeRequest:
    return EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=address)


def sent(cluster: Cluster, request: EnvelopeRequest) -> EnvelopeResponse:
    with RawClient(cluster.controller) as client:
        return client.ask(request, 0)  # type: ignore[no-any-return]


def inner(cluster: Cluster, request: Message, version: int) -> Any:
    """The response inside the envelope's response."""
    answer = sent(cluster, envelope(opened_up(request, version)))
    assert answer.error_code == E.NONE
    assert answer.response_data is not None
    assert int.from_bytes(answer.response_data[:4], "big") == 7, "the client's correlation id"
    return RawClient.decode(bytes(answer.response_data), request, version)


def topics(*names: str) -> CreateTopicsRequest:
    made = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return message(CreateTopicsRequest, topics=made, timeout_ms=30_000)


# ---- what is served --------------------------------------------------------------------------------------


def test_the_bytes_of_a_broker_of_apache_kafka_make_a_topic(cluster: Cluster) -> None:
    """Two partitions; the inner response has the client's correlation id."""
    with RawClient(cluster.controller) as client:
        client.send_frame(FROM_KAFKA)
        answer = client.receive(EnvelopeRequest(request_data=b"", request_principal=None, client_host_address=b""), 0)
    assert answer.error_code == E.NONE
    data = bytes(answer.response_data or b"")
    assert int.from_bytes(data[:4], "big") == 3
    (made,) = RawClient.decode(data, topics("forwarded"), 7).topics
    assert (made.name, made.error_code, made.num_partitions) == ("forwarded", E.NONE, 2)


def test_forwarded_requests_are_also_served_without_an_envelope(cluster: Cluster) -> None:
    """Barnabas' brokers forward without envelopes, so the controller listener needs every forwarded API."""
    with RawClient(cluster.controller) as client:
        served = {row.api_key for row in client.ask(ApiVersionsRequest(), 0).api_keys}
    assert served >= FORWARDED | {ApiKey.ENVELOPE}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made_and_deleted_in_every_version(cluster: Cluster, version: int) -> None:
    """The inner request has its own header and version."""
    name = os.urandom(4).hex()
    (made,) = inner(cluster, topics(name), version).topics
    assert (made.name, made.error_code) == (name, E.NONE)
    (again,) = inner(cluster, topics(name), version).topics
    assert again.error_code == E.TOPIC_ALREADY_EXISTS
    (gone,) = inner(cluster, DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5).responses
    assert (gone.name, gone.error_code) == (name, E.NONE)


def test_other_forwarded_requests_are_served(cluster: Cluster) -> None:
    """Configs, quotas, the quorum, reassignments, producer ids."""
    name = os.urandom(4).hex()
    inner(cluster, topics(name), 7)
    change = resource(TOPIC, name, ("retention.ms", SET, "1000"))
    altered = inner(cluster, IncrementalAlterConfigsRequest(resources=[change], validate_only=False), 1)
    assert [one.error_code for one in altered.responses] == [E.NONE]
    assert inner(cluster, AlterClientQuotasRequest(entries=[], validate_only=False), 1).entries == []
    assert inner(cluster, ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None), 0).error_code == E.NONE
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    described = inner(cluster, message(DescribeQuorumRequest, topics=quorum), 2)
    assert described.topics[0].partitions[0].leader_id == 1
    ids = inner(cluster, AllocateProducerIdsRequest(broker_id=1, broker_epoch=-1), 0)
    assert ids.error_code == E.STALE_BROKER_EPOCH


# ---- rejected envelopes -----------------------------------------------------------------------------------------


GOOD = opened_up(ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None), 0)
HEARTBEAT = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=1, current_metadata_offset=1, want_fence=False, want_shut_down=False
)
API_VERSIONS = ApiVersionsRequest(client_software_name="a", client_software_version="1")
BAD_PRINCIPAL = E.PRINCIPAL_DESERIALIZATION_FAILURE
WRONG: dict[str, tuple[EnvelopeRequest, ErrorCode]] = {
    "an API for brokers": (envelope(opened_up(MetadataRequest(topics=None), 12)), E.INVALID_REQUEST),
    "an API for the controller": (envelope(opened_up(HEARTBEAT, 0)), E.INVALID_REQUEST),
    "ApiVersions": (envelope(opened_up(API_VERSIONS, 3)), E.INVALID_REQUEST),
    "an envelope": (envelope(opened_up(envelope(GOOD), 0)), E.INVALID_REQUEST),
    "an unknown API": (envelope((999).to_bytes(2, "big") + GOOD[2:]), E.UNSUPPORTED_VERSION),
    "an unknown version": (envelope(GOOD[:2] + b"\0\x63" + GOOD[4:]), E.UNSUPPORTED_VERSION),
    "no request": (envelope(b""), E.UNSUPPORTED_VERSION),
    "half a header": (envelope(GOOD[:9]), E.UNSUPPORTED_VERSION),
    "half a request": (envelope(GOOD[:-3]), E.UNSUPPORTED_VERSION),
    "no principal": (envelope(GOOD, principal=None), BAD_PRINCIPAL),
    "a principal of another version": (envelope(GOOD, principal=b"\0\1" + ANONYMOUS[2:]), BAD_PRINCIPAL),
    "half a principal": (envelope(GOOD, principal=ANONYMOUS[:-4]), BAD_PRINCIPAL),
    "no address": (envelope(GOOD, address=b""), E.INVALID_REQUEST),
    "an address of three bytes": (envelope(GOOD, address=HERE[:3]), E.INVALID_REQUEST),
}
"""Invalid envelopes and their errors."""


@pytest.mark.parametrize("what", WRONG)
def test_envelope_errors_are_in_the_envelope_response(cluster: Cluster, what: str) -> None:
    """The error is in the envelope's response, without an inner response; the connection stays open."""
    request, code = WRONG[what]
    answer = sent(cluster, request)
    assert (ErrorCode(answer.error_code), answer.response_data) == (code, None)


@pytest.mark.parametrize("address", [HERE, bytes(15) + b"\1"])
def test_an_address_is_of_either_kind(cluster: Cluster, address: bytes) -> None:
    assert sent(cluster, envelope(GOOD, address=address)).error_code == E.NONE
