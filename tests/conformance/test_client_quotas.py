"""Clients over a quota, on this broker and on Apache Kafka: throttle times, muted connections, empty fetches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from protocol.errors import ErrorCode
from protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.conformance.brokers import append_when_ready, running
from tests.support.authorization_walk import OPEN, SECRET, Names, api_name, fit, requests
from tests.support.follower_harness import BOTH
from tests.support.loading import create, one_record, produce_request, topic
from tests.support.quotas import PRODUCE_VERSION, Quota, fetch, fetched_bytes, produce, set_quotas
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PRODUCED, FETCHED, PERCENT = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATIONS = "controller_mutation_rate"
REFUSED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
TOLERANCE_MS = 400
"""Between the first and the last request of a case."""


@pytest.fixture(scope="module", params=BOTH)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with running(request.param, settings) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
            append_when_ready(client, "t", one_record(b""))
        yield broker.bootstrap


def client_of(bootstrap: str, client_id: str) -> RawClient:
    return RawClient(bootstrap, client_id=client_id)


def assert_about(found_ms: int, expected_ms: int) -> None:
    assert expected_ms - TOLERANCE_MS <= found_ms <= expected_ms + 60, (found_ms, expected_ms)


def test_a_producer_over_its_quota_is_answered_at_once_and_then_muted(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "producer"}, PRODUCED, 10_000.0))
    with client_of(bootstrap, "producer") as client:
        assert produce(client, "t", 90_000) == 0
        started_s = time.monotonic()
        throttle_ms = produce(client, "t", 20_000)
        assert time.monotonic() - started_s < 0.5
        assert_about(throttle_ms, 1000)
        produce(client, "t", 1)
        assert time.monotonic() - started_s > throttle_ms / 1000 * 0.95


def test_all_connections_of_a_client_id_share_its_quota(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "shared"}, PRODUCED, 10_000.0))
    with client_of(bootstrap, "shared") as one, client_of(bootstrap, "shared") as other:
        assert produce(one, "t", 99_000) == 0
        assert_about(produce(other, "t", 11_000), 1000)
    with client_of(bootstrap, "not shared") as third:
        assert produce(third, "t", 200_000) == 0


def test_acks_0_counts_bytes(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "silent"}, PRODUCED, 10_000.0))
    with client_of(bootstrap, "silent") as client, client_of(bootstrap, "silent") as other:
        client.send(produce_request({"t": [one_record(bytes(110_000))]}, acks=0), PRODUCE_VERSION)
        assert_about(until(lambda: produce(other, "t", 1), "the bytes count"), 1000)
        started_s = time.monotonic()
        produce(client, "t", 1)
        assert time.monotonic() - started_s > 0.4


def test_a_fetch_over_the_quota_is_empty_and_keeps_its_session(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        create(client, "fetched")
        append_when_ready(client, "fetched", one_record(bytes(69_928)))  # a batch of 70,000 bytes
        produce(client, "fetched", 60_000)
    set_quotas(bootstrap, ({"client-id": "consumer"}, FETCHED, 13_000.0))
    with client_of(bootstrap, "consumer") as client:
        first = fetch(client, "fetched", session=(0, 0), max_bytes=70_000)
        assert (first.throttle_time_ms, first.error_code, fetched_bytes(first)) == (0, 0, 70_000)
        empty = fetch(client, "fetched", session=(first.session_id, 1), max_bytes=70_000)
        assert (empty.session_id, empty.responses) == (first.session_id, [])
        assert_about(empty.throttle_time_ms, 780)
        again = fetch(client, "fetched", session=(first.session_id, 2), max_bytes=50_000)
        assert (again.error_code, again.session_id) == (0, first.session_id)
        assert fetched_bytes(again) > 50_000


def test_a_fetch_returns_at_most_ten_seconds_of_the_quota(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        create(client, "capped")
        append_when_ready(client, "capped", one_record(bytes(20_000)))
    set_quotas(bootstrap, ({"client-id": "capped"}, FETCHED, 1500.0))
    with client_of(bootstrap, "capped") as client:
        started_s = time.monotonic()
        response = fetch(client, "capped", session=(0, 0), min_bytes=1_000_000, max_wait_ms=9000)
        assert time.monotonic() - started_s < 5  # min_bytes is capped too
        assert (response.session_id, response.responses) == (0, [])
        assert_about(response.throttle_time_ms, 3420)


def test_a_throttled_first_fetch_creates_no_session(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        create(client, "large")
        append_when_ready(client, "large", one_record(bytes(150_000)))
    set_quotas(bootstrap, ({"client-id": "late"}, FETCHED, 10_000.0))
    with client_of(bootstrap, "late") as client:
        first = fetch(client, "large", session=(0, 0))
        assert (first.session_id, first.responses) == (0, [])
        assert_about(first.throttle_time_ms, 5000)


def creation(client: RawClient, version: int, validate_only: bool = False, **partitions: int) -> tuple[list[Any], int]:
    """Creates topics; their codes and messages, and the throttle time."""
    topics = [topic(name, count) for name, count in partitions.items()]
    request = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=validate_only)
    response = client.ask(request, version)
    return [(made.name, made.error_code, made.error_message) for made in response.topics], response.throttle_time_ms


def test_creations_over_the_quota_are_refused(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "creator"}, MUTATIONS, 1.0))
    with client_of(bootstrap, "creator") as client:
        answers, throttle_ms = creation(client, 7, s1=11, s2=3, s3=1)
        assert sorted(answers) == [("s1", 0, None), ("s2", 0, None), ("s3", REFUSED, None)]
        assert_about(throttle_ms, 3000)
        started_s = time.monotonic()
        assert creation(client, 7, s4=1) == ([("s4", 0, None)], 0)
        assert time.monotonic() - started_s > 2.5


def test_creations_that_only_validate_count(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "validator"}, MUTATIONS, 1.0))
    with client_of(bootstrap, "validator") as client:
        assert creation(client, 7, validate_only=True, v1=12) == ([("v1", 0, None)], 0)
        answers, throttle_ms = creation(client, 7, v2=1)
        assert answers == [("v2", REFUSED, None)]
        assert_about(throttle_ms, 1000)


def test_old_clients_over_the_quota_are_served_and_muted(bootstrap: str) -> None:
    set_quotas(bootstrap, ({"client-id": "old creator"}, MUTATIONS, 1.0))
    with client_of(bootstrap, "old creator") as client:
        answers, throttle_ms = creation(client, 5, o1=11, o2=1)
        assert sorted(answers) == [("o1", 0, None), ("o2", 0, None)]
        assert_about(throttle_ms, 1000)


def test_deletions_and_additions_count(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        assert creation(client, 7, d1=11, d2=1, d3=2)[1] == 0
    set_quotas(bootstrap, ({"client-id": "changer"}, MUTATIONS, 1.0))

    def delete(*names: str) -> tuple[dict[str, int], int]:
        topics = [DeleteTopicState(name=name) for name in names]
        response = client.ask(DeleteTopicsRequest(topics=topics, timeout_ms=10_000), 6)
        return {deleted.name: deleted.error_code for deleted in response.responses}, response.throttle_time_ms

    with client_of(bootstrap, "changer") as client:
        assert delete("d1") == ({"d1": 0}, 0)
        added = [CreatePartitionsTopic(name="d2", count=3, assignments=None)]
        request = CreatePartitionsRequest(topics=added, timeout_ms=10_000, validate_only=False)
        response = client.ask(request, 3)
        assert ([row.error_code for row in response.results], response.throttle_time_ms) == ([0], 0)
        codes, throttle_ms = delete("d3")
        assert codes == {"d3": REFUSED}
        assert_about(throttle_ms, 2000)


THIS = "this"
PRECEDENCE: list[dict[str, str | None]] = [
    {"user": "ANONYMOUS", "client-id": THIS},
    {"user": "ANONYMOUS", "client-id": None},
    {"user": "ANONYMOUS"},
    {"user": None, "client-id": THIS},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": THIS},
    {"client-id": None},
]
"""Entities from the strongest to the weakest; THIS is the client id of the client."""


def test_the_strongest_of_the_quotas_that_apply_counts(bootstrap: str) -> None:
    """Each entity has its own bound, so the throttle time shows which one counts; the strongest is deleted each time."""

    def quotas(client_id: str, *ranks: int, is_deleted: bool = False) -> list[Quota]:
        found: list[Quota] = []
        for rank in ranks:
            entity = {kind: client_id if name == THIS else name for kind, name in PRECEDENCE[rank].items()}
            found.append((entity, PRODUCED, None if is_deleted else float(int(10_000 * 1.3**rank))))
        return found

    everything = range(len(PRECEDENCE))
    for rank in everything:
        client_id = f"client of rank {rank}"
        set_quotas(bootstrap, *quotas(client_id, *everything[rank:]))
        with client_of(bootstrap, client_id) as client:
            throttle_ms = produce(client, "t", int(10_000 * 1.3**rank) * 11)
        if rank == 5:  # the user was used above
            assert throttle_ms > 0
        else:
            assert_about(throttle_ms, 1000)
        set_quotas(bootstrap, *quotas(client_id, *everything[rank:], is_deleted=True))


NOT_THROTTLED: Final = {
    "FETCH: Fetch by a follower",
    "WRITE_TXN_MARKERS: WriteTxnMarkers",
    "DESCRIBE_QUORUM: DescribeQuorum",
    "SASL_HANDSHAKE: SaslHandshake",
    "SASL_AUTHENTICATE: SaslAuthenticate",
}
"""Requests of brokers, and responses without the field."""
CLOSED: Final = {"DeleteAcls of 0", "InitProducerId None", "InitProducerId tx"}
"""Requests that both brokers refuse by closing the connection."""


def test_every_api_answers_with_a_throttle_time(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        names = Names(*create(client, SECRET, OPEN))
        append_when_ready(client, SECRET, one_record(b""))
    set_quotas(bootstrap, ({"client-id": "walker"}, PERCENT, 1e-5))
    silent, closed = set(), set()
    for name, request in requests(names):
        version = type(request).MAX_VERSION
        with client_of(bootstrap, "walker") as client:  # muting ends with the connection
            try:
                response = client.ask(fit(request, version), version)
            except EOFError:
                closed.add(name)
                continue
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        assert throttle_ms in (0, 1000)
        if not throttle_ms:
            silent.add(f"{api_name(request)}: {name}")
    assert (silent, closed) == (NOT_THROTTLED, CLOSED)
