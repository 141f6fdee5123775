"""Envelopes that a broker sends (broker/peers/forwarding.py): the controller's handler opens them, errors become responses."""

from __future__ import annotations

import pytest

from broker.handlers.quorum.envelopes import EnvelopeHandler
from broker.handlers.router import RequestContext, Route
from broker.network.exchange import ConnectionInfo
from broker.peers.forwarding import envelope, response_in
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.messages.cluster import UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse
from protocol.messages.forwarding import EnvelopeResponse
from protocol.schema import Message
from replication.controller.controller_client import Client
from tests.support.messages import message

REQUEST = message(DeleteTopicsRequest, topics=[{"name": "t"}], timeout_ms=5)
CLIENT = Client("User:CN=a:b", "10.0.0.1")


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::1", "fe80::1%eth0"])
def test_the_controller_sees_the_client(host: str) -> None:
    seen: list[tuple[str, str, str | None, int, Message]] = []
    response = DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=0)])

    def handle(context: RequestContext, request: Message) -> Message:
        seen.append((context.principal, context.connection.peer_host, context.client_id, context.api_version, request))
        return response

    handler = EnvelopeHandler([Route(ApiKey.DELETE_TOPICS, 1, 6, handle)], AllowAll())
    broker = ConnectionInfo(1, "CONTROLLER", ("127.0.0.1", 1), ("127.0.0.1", 2), "User:broker")
    context = RequestContext(ApiKey.ENVELOPE, 0, 1, "c", broker, 0, 0)
    answer = handler.handle(context, envelope(REQUEST, Client("User:CN=a:b", host, "admin")))
    assert isinstance(answer, Message)
    assert seen == [("User:CN=a:b", host.partition("%")[0], "admin", 6, REQUEST)]
    assert response_in(REQUEST, CLIENT, answer) == response


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_an_envelope_is_an_error_of_the_request(code: ErrorCode, expected: ErrorCode) -> None:
    request = message(
        CreateTopicsRequest, topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}], timeout_ms=5
    )
    response = response_in(request, CLIENT, EnvelopeResponse(error_code=code))
    assert isinstance(response, CreateTopicsResponse)
    assert [topic.error_code for topic in response.topics] == [expected]


def test_no_answer_stays_no_answer() -> None:
    assert response_in(REQUEST, CLIENT, None) is None


def test_a_client_that_does_not_know_quota_errors_is_forwarded_in_a_version_without_them() -> None:
    response = DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_code=0)], throttle_time_ms=70)
    seen = []

    def handle(context: RequestContext, request: DeleteTopicsRequest) -> Message:
        seen.append((context.api_version, request.topic_names))
        return response

    handler = EnvelopeHandler([Route(ApiKey.DELETE_TOPICS, 1, 6, handle)], AllowAll())
    broker = ConnectionInfo(1, "CONTROLLER", ("127.0.0.1", 1), ("127.0.0.1", 2), "User:broker")
    context = RequestContext(ApiKey.ENVELOPE, 0, 1, "c", broker, 0, 0)
    old = CLIENT._replace(api_version=3)
    answer = handler.handle(context, envelope(REQUEST, old))
    assert isinstance(answer, Message)
    assert seen == [(4, ["t"])]
    assert response_in(REQUEST, old, answer) == response


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_gets_the_results_of_features_that_its_version_has(version: int) -> None:
    """Without them Java's admin clients before version 2 report a failure, although the controller has changed the levels."""
    update = {"feature": "group.version", "max_version_level": 1}
    request = message(UpdateFeaturesRequest, feature_updates=[update])
    results = [UpdatableFeatureResult(feature="group.version", error_code=0, error_message="NONE")]
    response = UpdateFeaturesResponse(error_code=0, results=results)
    handler = EnvelopeHandler([Route(ApiKey.UPDATE_FEATURES, 0, 2, lambda *_: response)], AllowAll())
    broker = ConnectionInfo(1, "CONTROLLER", ("127.0.0.1", 1), ("127.0.0.1", 2), "User:broker")
    client = CLIENT._replace(api_version=version)
    answer = handler.handle(RequestContext(ApiKey.ENVELOPE, 0, 1, "c", broker, 0, 0), envelope(request, client))
    assert isinstance(answer, Message)
    forwarded = response_in(request, client, answer)
    assert isinstance(forwarded, UpdateFeaturesResponse)
    assert forwarded.results == (results if version < 2 else [])
