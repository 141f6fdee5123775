"""Which OffsetCommits take the fast path, and their results that exist later. tests/property checks the responses."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.handlers.router import RequestContext
from protocol.api import ApiKey
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.frame_codecs.offset_commit_codec import decode_request
from protocol.messages.groups import OffsetCommitRequest
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import commit_request, error_of, fetch_request
from tests.support.messages import message


@pytest.fixture
def harness() -> LocalGroupHarness:
    made = LocalGroupHarness(offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 9000)
    return made


def answer_of(harness: LocalGroupHarness, request: OffsetCommitRequest, version: int = 9) -> Any:
    """The fast path's response."""
    route = harness.router.table[ApiKey.OFFSET_COMMIT]
    assert route.fast_path is not None
    fast_path: Any = route.fast_path(version)
    context = RequestContext(ApiKey.OFFSET_COMMIT, version, 1, "c", harness.connection, 0, 0)
    return None if fast_path is None else fast_path(context, bytearray(encode(request, version)), 0)


def offset(harness: LocalGroupHarness, partition: int = 0) -> int:
    """The committed offset of a partition."""
    fetched = harness.ask(fetch_request(partition=partition), 9)
    return int(fetched.groups[0].topics[0].partitions[0].committed_offset)


@pytest.mark.parametrize("version", range(2, 10))
def test_a_plain_commit_takes_the_fast_path(harness: LocalGroupHarness, version: int) -> None:
    assert isinstance(answer_of(harness, commit_request(5), version), list) is (version >= 8)
    assert offset(harness) == (5 if version >= 8 else -1)


@pytest.mark.parametrize(
    "request_",
    [
        {"metadata": "note"},
        {"partition": 8999, "count": 2},
        {"count": 8193},
        {"topic": "unknown"},
        {"group": "g" * 127},
        {"generation": 3},
    ],
)
def test_other_commits_are_left_to_the_handler(harness: LocalGroupHarness, request_: Any) -> None:
    assert answer_of(harness, commit_request(5, **request_)) is None
    assert not harness.logs[0].batches


def test_a_request_without_topics_is_left_to_the_handler(harness: LocalGroupHarness) -> None:
    assert answer_of(harness, message(OffsetCommitRequest, group_id="g", member_id="", topics=[])) is None


def test_all_partitions_of_a_large_commit_are_stored(harness: LocalGroupHarness) -> None:
    assert isinstance(answer_of(harness, commit_request(7, count=8192)), list)
    assert [offset(harness, index) for index in (0, 63, 64, 8191)] == [7] * 4
    harness.restart()
    assert [offset(harness, index) for index in (0, 63, 64, 8191, 8192)] == [7, 7, 7, 7, -1]


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_the_response_waits_until_the_records_are_committed(harness: LocalGroupHarness, error: ErrorCode) -> None:
    log = harness.logs[0]
    log.is_holding = True
    harness.send("c", commit_request(5), 9)
    assert harness.take("c") is None
    log.release(error)
    assert error_of(harness.take("c")) is (ErrorCode.NOT_COORDINATOR if error else ErrorCode.NONE)


def test_a_commit_of_a_closed_connection_leaves_the_others_waiting(harness: LocalGroupHarness) -> None:
    log = harness.logs[0]
    log.is_holding = True
    closed = answer_of(harness, commit_request(5))
    harness.send("reader", fetch_request(), 9)
    closed.cancel()
    log.release()
    assert harness.take("reader") is not None


def test_a_rejected_append_stores_nothing(harness: LocalGroupHarness) -> None:
    harness.logs[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert answer_of(harness, commit_request(5)) is None
    assert offset(harness) == -1
    assert error_of(harness.ask(commit_request(5), 9)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_null_array_of_partitions_is_left_to_the_handler() -> None:
    """Its count of -1 would end before it starts: in compiled code that is an error."""
    request = message(OffsetCommitRequest, group_id="g", member_id="m", topics=[{"name": "t", "partitions": []}])
    data = encode(request, 9).replace(b"\x02t\x01", b"\x02t\x00")
    assert decode_request(bytearray(data), 0, 9) is None
