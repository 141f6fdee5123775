"""Rates between two samples of a cluster, and figures of metrics pages."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from barnabas.admin.activity import GroupSample, Sample, TopicSample, group_rates, topic_rates
from barnabas.admin.metrics_page import parse, read_pages, request_rates
from barnabas.client.errors import ClientError
from tests.support.one_answer import answering


def sample(at_s: float, topics: dict[str, TopicSample], groups: dict[str, GroupSample] | None = None) -> Sample:
    return Sample(at_s, "id", 1, topics, groups or {}, {})


def topic(ends: int, size: int | None) -> TopicSample:
    return TopicSample(1, 0, 0, {0: ends}, size)


def test_topics_are_ordered_by_their_rate() -> None:
    before = sample(10, {"slow": topic(0, 100), "fast": topic(5, 0), "gone": topic(1, 1)})
    after = sample(12, {"slow": topic(4, 90), "fast": topic(105, None), "new": topic(7, 7)})
    rates = [(rate.topic, rate.records_per_s, rate.bytes_per_s) for rate in topic_rates(before, after)]
    assert rates == [("fast", 50, None), ("slow", 2, -5), ("new", 0, 0)]


def test_a_partition_that_gets_a_leader_again_does_not_count_as_written() -> None:
    whole, without = TopicSample(2, 0, 0, {0: 10, 1: 1000}, 0), TopicSample(2, 1, 1, {0: 10}, 0)
    assert [topic_rates(sample(0, {"t": then}), sample(2, {"t": now}))[0].records_per_s for then, now in (
        (whole, without), (without, whole), (without, without._replace(ends={0: 14})),
    )] == [0, 0, 2]  # fmt: skip


def test_a_partition_that_is_new_counts_from_its_start() -> None:
    before, after = TopicSample(1, 0, 0, {0: 10}, 0), TopicSample(2, 0, 0, {0: 10, 1: 6}, 0)
    assert topic_rates(sample(0, {"t": before}), sample(2, {"t": after}))[0].records_per_s == 3


@pytest.mark.parametrize(
    ("lag_then", "lag_now", "catch_up"), [(100, 50, 2), (50, 100, None), (50, 50, None), (5, 0, 0)]
)
def test_a_group_catches_up_if_its_lag_shrinks(lag_then: int, lag_now: int, catch_up: float | None) -> None:
    before = sample(0, {}, {"g": GroupSample("classic", "Stable", 0, lag_then)})
    after = sample(2, {}, {"g": GroupSample("classic", "Stable", 80, lag_now)})
    [rate] = group_rates(before, after)
    assert (rate.lag_per_s, rate.committed_per_s, rate.catch_up_s) == ((lag_now - lag_then) / 2, 40, catch_up)


PAGE = """\
# TYPE kafka_network_requestmetrics_requests_total counter
kafka_network_requestmetrics_requests_total{request="Fetch",version="12"} %d
kafka_network_requestmetrics_requests_total{request="Fetch",version="17"} 3
kafka_network_requestmetrics_requests_total{request="Produce",version="9"} 1.0
kafka_server_brokertopicmetrics_bytesin_total 1000
kafka_server_brokertopicmetrics_bytesin_total{topic="a \\"b\\", c"} 700
kafka_server_socket_server_metrics_connection_count{listener="PLAINTEXT",networkProcessor="0"} 4
"""


def test_a_metrics_page_is_added_up() -> None:
    before, after = (parse((PAGE % count).splitlines(), at_s) for count, at_s in ((10, 0.0), (30, 2.0)))
    assert (after.requests, after.connections, after.bytes_in) == ({"Fetch": 33, "Produce": 1}, 4, 1000)
    assert parse((PAGE % 1).splitlines()[:2], 0).connections is None
    assert request_rates(before, after) == [("Fetch", 10)]
    assert request_rates(after, before) == []


def test_a_page_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ClientError, match=r"no metrics page at 127\.0\.0\.1:1: .*refused"):
        read_pages(["127.0.0.1:1"], 0)


def served(answer: bytes) -> str:
    """What `read_pages` says about a server that sends these bytes."""
    with (
        answering(answer) as address,
        pytest.raises(ClientError, match=f"^There is no metrics page at {address}: .*[^.]\\.$") as refused,
    ):
        read_pages([address], 0)
    return str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"],
    ids=["another protocol", "broken off"],
)
def test_what_is_no_whole_page_is_one_sentence(answer: bytes) -> None:
    assert served(answer)


@pytest.mark.parametrize("url", ["a b:1", "127.0.0.1:²"])
def test_an_address_of_no_page_is_one_sentence(url: str) -> None:
    with pytest.raises(ClientError, match=f"no metrics page at {url}: "):
        read_pages([url], 0)


def test_lines_of_other_metrics_are_not_read() -> None:
    """A group may be named `a\\u2028b c`, and every page of the web may have lines of two words."""
    page = f'hello world\nkafka_consumergroup_members{{consumergroup="a\u2028b c"}} 1\n{PAGE % 1}'
    with patch("barnabas.admin.metrics_page._read", return_value=page):
        assert read_pages(["here"], 0).requests == {"Fetch": 4, "Produce": 1}
