"""Both brokers answer admin requests as the tables say (tests/support/admin_cases.py), and support the same APIs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.schema import Message
from tests.support.admin_cases import CASES, normalised
from tests.support.cluster_cases import CLUSTER_CASES
from tests.support.config_cases import SETTINGS_CASES
from tests.support.feature_cases import FEATURES
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import topic
from tests.support.logger_cases import LOGGERS
from tests.support.raw_client import RawClient

SETTINGS = {"num.partitions": "1"}


def prepared(bootstrap: str) -> RawClient:
    """A client of a broker with the tables' topics."""
    client = RawClient(bootstrap)
    topics = [topic("t1", 3), topic("t2", 2, configs=[("cleanup.policy", "compact,delete")]), topic("c.c")]
    made = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    assert [code for _, code, _ in normalised(made)] == [0, 0, 0]
    return client


ALL = CASES | SETTINGS_CASES | CLUSTER_CASES | {"features": FEATURES, "loggers": LOGGERS}


@pytest.fixture(scope="module")
def kafka() -> Iterator[RawClient]:
    with ApacheKafka(SETTINGS) as broker, prepared(broker.bootstrap) as client:
        yield client


@pytest.fixture(scope="module")
def ours() -> Iterator[RawClient]:
    with Broker(settings=SETTINGS) as broker, prepared(broker.bootstrap) as client:
        yield client


@pytest.mark.parametrize("broker", ["ours", pytest.param("kafka", marks=needs_kafka)])
@pytest.mark.parametrize("api", ALL)
def test_a_broker_answers_as_expected(request: pytest.FixtureRequest, api: str, broker: str) -> None:
    """Error codes and messages word for word; the tables give the reason for each deliberate difference."""
    client: RawClient = request.getfixturevalue(broker)
    wrong = []
    for case in ALL[api]:
        expected = case.ours if broker == "ours" and case.ours is not None else case.answer
        answer = normalised(client.ask(case.request, type(case.request).MAX_VERSION))
        if answer != expected:
            wrong.append(f"{case.request}\n  broker: {answer}\n  table:  {expected}")
    assert not wrong, "\n".join(wrong)


# ---- which APIs are served

_SHARE, _STREAMS = "share groups are not served", "streams groups are not served"

DIFFERENCES: dict[int, str] = {
    **dict.fromkeys(range(76, 80), _SHARE),  # ShareGroupHeartbeat to ShareAcknowledge
    **dict.fromkeys(range(83, 88), _SHARE),  # InitializeShareGroupState to ReadShareGroupStateSummary
    **dict.fromkeys(range(88, 90), _STREAMS),  # StreamsGroupHeartbeat, StreamsGroupDescribe
    **dict.fromkeys(range(90, 93), _SHARE),  # DescribeShareGroupOffsets to DeleteShareGroupOffsets
}
"""The APIs that only one of the brokers supports, and why; all others have the same versions in both."""


def served(client: RawClient) -> tuple[dict[int, tuple[int, int]], dict[str, tuple[int, int]]]:
    """APIs and features with their lowest and highest versions."""
    query = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = client.ask(query, 4)
    apis = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    return apis, {row.name: (row.min_version, row.max_version) for row in response.supported_features}


@needs_kafka
def test_the_same_versions_of_the_same_apis_are_served(kafka: RawClient, ours: RawClient) -> None:
    """Except for `DIFFERENCES`, each of which is real."""
    (theirs, their_features), (our, our_features) = served(kafka), served(ours)
    different = {key for key in theirs | our if theirs.get(key) != our.get(key)}
    assert different == set(DIFFERENCES)
    assert our_features == their_features


@needs_kafka
@pytest.mark.parametrize(
    ("request_", "version"),
    [
        *((SaslHandshakeRequest(mechanism=name), version) for name in ("PLAIN", "") for version in (0, 1)),
        *((SaslAuthenticateRequest(auth_bytes=b"\0u\0p"), version) for version in range(3)),
    ],
)
def test_a_sasl_handshake_gets_the_same_answer(
    kafka: RawClient, ours: RawClient, request_: Message, version: int
) -> None:
    """On a listener without SASL; the connection stays open."""
    response = [client.ask(request_, version) for client in (kafka, ours)]
    assert response[0] == response[1]
    assert response[1].error_code == ErrorCode.ILLEGAL_SASL_STATE
