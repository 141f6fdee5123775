"""SearchRecords, and the same over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.records.search import TIMEOUT_MS, SearchHandler
from broker.handlers.records.search_page import SearchPage, parse_query
from broker.handlers.router import Router
from broker.security.authorizer import AllowAll, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.search import SearchRecordsRequest, SearchRecordsResponse
from replication.completion import Completion
from replication.partition.key_search import SearchQuery
from tests.support.deny import Deny
from tests.support.key_index import ALL_TIMES, KeyIndexRig
from tests.support.replica_harness import NOW_MS, Answer, ReplicaHarness


class Searches:
    """Both doors of a broker that leads two of three partitions of topic `t`."""

    def __init__(self, path: Path, authorizer: Authorizer) -> None:
        self.harness = harness = ReplicaHarness(path)
        harness.create(partitions=3, replicas=(1, 2), isr=(1,), barnabas_index_keys="key,header:h")
        harness.change(index=2, leader=2, isr=[2])
        self.rig = KeyIndexRig(harness)
        self.handler = SearchHandler(self.rig.searches, harness.timers, authorizer)
        clock: Any = SimpleNamespace(mono_ms=lambda: harness.mono_ms)
        self.page = SearchPage(self.rig.searches, authorizer, harness.timers, clock)
        for number in range(6):
            builder = BatchBuilder()
            builder.append(NOW_MS + number, b"k", b"%d" % number, (("h", b"\xff"), ("é", None)))
            harness.append(index=number % 2, records=builder.build(), acks=1)
        self.rig.build()

    def run(self) -> None:
        while self.rig.searcher.run_job():
            pass

    def ask(self, **fields: Any) -> SearchRecordsResponse:
        defaults: dict[str, Any] = {"topic": "t", "partitions": None, "field": "key", "value": b"k", "max_records": 2}
        times = {"from_ms": ALL_TIMES[0], "to_ms": ALL_TIMES[1]}
        request = SearchRecordsRequest(**{**defaults, **times, **fields})
        context = self.harness.context(ApiKey.SEARCH_RECORDS, 0)
        answer = Answer(self.handler.handle(context, request), SearchRecordsResponse, 0)
        self.run()
        assert answer.is_done
        response: SearchRecordsResponse = answer.message
        return response

    def get_text(self, query: str) -> tuple[int, str]:
        answer: Completion[tuple[int, Iterator[str]]] = self.page.answer(query, "127.0.0.1")
        self.run()
        status, parts = answer.result()
        return status, "".join(parts)

    def get(self, query: str) -> tuple[int, Any]:
        status, body = self.get_text(query)
        return status, json.loads(body)


@pytest.fixture
def searches(tmp_path: Path) -> Searches:
    return Searches(tmp_path, AllowAll())


def test_a_response_has_the_records_of_all_led_partitions_and_their_bounds(searches: Searches) -> None:
    response = searches.ask()
    assert response.error_code == 0
    assert [(one.partition_index, one.from_offset, one.to_offset, one.is_cut) for one in response.partitions] == [
        (0, 0, 3, True),
        (1, 0, 3, True),
    ]
    assert [record.value for record in response.partitions[0].records] == [b"4", b"2"]
    assert response.partitions[0].records[0].headers[0].value == b"\xff"
    assert response.partitions[0].records[0].headers[1].name == "é".encode()
    assert response.partitions[0].min_timestamp_ms == NOW_MS


def test_a_partition_that_is_led_elsewhere_has_its_own_error(searches: Searches) -> None:
    codes = {one.partition_index: one.error_code for one in searches.ask(partitions=[0, 2, 7]).partitions}
    assert codes == {
        0: 0,
        2: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_invalid_requests_are_refused(searches: Searches) -> None:
    assert searches.ask(topic="x").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert searches.ask(max_records=0).error_code == ErrorCode.INVALID_REQUEST
    (first, _) = searches.ask(field="header:other").partitions
    assert first.error_code == ErrorCode.INVALID_REQUEST
    assert first.error_message == "Topic t has no index of header:other: its barnabas.index.keys is key, header:h"


def test_a_client_needs_read_on_the_topic(tmp_path: Path) -> None:
    searches = Searches(tmp_path, Deny((Operation.READ, Resource.TOPIC, "t")))
    assert searches.ask().error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert searches.get("topic=t&key=k") == (403, {"error": "User:ANONYMOUS has no Read on topic t"})


def test_a_search_that_takes_too_long_is_answered_with_a_timeout(searches: Searches) -> None:
    request = SearchRecordsRequest(
        topic="t", partitions=[0], field="key", value=b"k", from_ms=0, to_ms=1, max_records=1
    )
    context = searches.harness.context(ApiKey.SEARCH_RECORDS, 0)
    answer = Answer(searches.handler.handle(context, request), SearchRecordsResponse, 0)
    page = searches.page.answer("topic=t&key=k", "127.0.0.1")
    searches.harness.pass_time(TIMEOUT_MS)
    assert answer.message.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert page.result()[0] == 503
    assert searches.rig.searches.running == 0


@pytest.mark.parametrize("is_expired", [True, False])
def test_a_search_that_is_not_needed_any_more_ends(searches: Searches, is_expired: bool) -> None:
    page = searches.page.answer("topic=t&key=k", "127.0.0.1")
    submitted = len(searches.rig.searcher.submitted)
    if is_expired:
        searches.harness.pass_time(TIMEOUT_MS)
    else:
        page.cancel()  # the client has closed its connection
    assert [done.is_cancelled for _, done in searches.rig.searcher.queue] == [True] * 2
    searches.run()
    assert len(searches.rig.searcher.submitted) == submitted
    assert searches.rig.searches.running == 0


def test_the_api_is_served_and_not_advertised(searches: Searches) -> None:
    router = Router(searches.handler.routes())
    assert ApiKey.SEARCH_RECORDS in router.table
    assert router.advertised() == []


def test_the_page_has_the_newest_records_of_all_partitions(searches: Searches) -> None:
    status, page = searches.get(f"topic=t&key=k&max=3&from={NOW_MS + 1}")
    assert status == 200
    assert [(one["partition"], one["offset"], one["value"]) for one in page["records"]] == [
        (1, 2, "5"),
        (0, 2, "4"),
        (1, 1, "3"),
    ]
    assert page["records"][0]["headers"] == [{"key": "h", "value": {"base64": "/w=="}}, {"key": "é", "value": None}]
    assert [(one["to_offset"], one["end_offset"], one["is_cut"]) for one in page["partitions"]] == [
        (3, 3, True),
        (3, 3, True),
    ]
    assert page["led_elsewhere"] == [{"partition": 2, "leader": 2}]


def test_the_page_searches_headers_by_percent_encoded_bytes(searches: Searches) -> None:
    assert len(searches.get("topic=t&header=h=%ff")[1]["records"]) == 6
    assert searches.get("topic=t&header=h=x")[1]["records"] == []


def test_an_error_of_the_page_names_bytes_that_are_not_utf_8(searches: Searches) -> None:
    for query, sentence in (
        ("topic=t&%ff=1", "there is no parameter \ufffd"),
        ("topic=t&header=%ff=1", "Topic t has no index of header:\ufffd: its barnabas.index.keys is key, header:h"),
    ):
        status, body = searches.get_text(query)
        assert (status, json.loads(body.encode())) == (400, {"error": sentence})


def test_a_query_string_is_parsed() -> None:
    assert parse_query("topic=a%20b&header=n=v%3d&from=-1&to=5&max=7") == (
        "a b",
        SearchQuery("header:n", b"v=", -1, 5, 7),
    )


@pytest.mark.parametrize(
    "query",
    [
        "",
        "key=k",
        "topic=t",
        "topic=t&key=k&header=a=b",
        "topic=t&header=a",
        "topic=t&key=k&max=0",
        "topic=t&key=k&from=yesterday",
        "topic=t&key=k&limit=1",
        "topic=t&key=k&key=l",
    ],
)
def test_an_invalid_query_string_is_a_bad_request(query: str, searches: Searches) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_query(query)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert searches.get(query)[0] == 400
