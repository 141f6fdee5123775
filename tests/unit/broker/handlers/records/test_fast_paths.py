"""Which requests take the fast paths of Fetch and Produce. tests/property checks their responses."""

from __future__ import annotations

from typing import Any

import pytest

from broker.handlers.records import fetch_fast_path, produce_fast_path
from protocol.codec import decode, encode
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import PartitionProduceResponse, ProduceResponse
from storage.io.would_block import WouldBlock
from tests.support.replica_harness import Client, ReplicaHarness, batch, fetched, offsets


@pytest.fixture
def harness(tmp_path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    made.load("t", batches=3)
    return made


def fetch_fast(harness: ReplicaHarness, version: int, places: Any = None, **request: Any) -> Any:
    """The fast path's response to a Fetch."""
    fast_path = fetch_fast_path.fast_paths(harness.fetching)(version)
    made = harness.fetch_request({("t", 0): 1} if places is None else places, version=version, **request)
    made.replica_state = None
    return None if fast_path is None else fast_path(harness.context(1, version), bytearray(encode(made, version)), 0)


def produce_fast(harness: ReplicaHarness, version: int, acks: int = 1, records: Any = None) -> Any:
    """The fast path's response to a Produce."""
    fast_path = produce_fast_path.fast_paths(harness.producing)(version)
    made = harness.produce_request([("t", 0, batch() if records is None else records)], version=version, acks=acks)
    return None if fast_path is None else fast_path(harness.context(0, version), bytearray(encode(made, version)), 0)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_plain_fetch_takes_the_fast_path(harness, version):
    assert (fetch_fast(harness, version) is not None) is (version >= 9)


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_a_session_with_one_dirty_partition_takes_the_fast_path(harness, version):
    client = Client(harness, version, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    assert fetch_fast(harness, version, session=client.session) is not None
    client.session = (client.session[0], client.session[1] + 1)
    assert offsets(fetched(client.fetch())) == [1, 2]


@pytest.mark.parametrize(
    "request_",
    [
        {"places": {("t", 0): 1, ("t", 1): 0}},
        {"places": {}},
        {"places": {("t", 0): 3}},
        {"places": {("unknown", 0): 0}},
        {"rack": "rack2"},
        {"session": (0, 0)},
        {"session": (77, 3)},
        {"min_bytes": 10_000},
    ],
)
def test_other_fetch_layouts_are_left_to_the_handler(harness, request_):
    assert fetch_fast(harness, 12, **request_) is None


def test_a_read_that_would_block_is_left_to_the_handler(harness, monkeypatch):
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", 0): 0})

    def read(*_: Any, **__: Any) -> Any:
        raise WouldBlock(lambda: None, lambda _: None)

    with monkeypatch.context() as cold:
        cold.setattr(harness.replicas, "read", read)
        assert fetch_fast(harness, 12, session=client.session) is None
    assert offsets(fetched(client.fetch({("t", 0): 1}))) == [1, 2]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_plain_produce_takes_the_fast_path(harness, version):
    assert isinstance(produce_fast(harness, version), list) is (version >= 7)


def test_other_produce_layouts_are_left_to_the_handler(harness):
    assert produce_fast(harness, 9, acks=0) is None
    assert produce_fast(harness, 9, records=batch(transactional=True, producer_id=1, base_sequence=0)) is None
    assert produce_fast(harness, 9, records=batch()[:60]) is None
    assert harness.partition().log.log_end_offset == 3


def test_errors_are_left_to_the_handler(harness):
    broken = batch()
    broken[30] ^= 1
    answer = produce_fast(harness, 9, records=broken)
    assert answer.responses[0].partition_responses[0].error_code == 2


class Waiting:
    """A Produce for a partition with a follower that has not fetched it yet."""

    def __init__(self, harness: ReplicaHarness, version: int) -> None:
        harness.create("r", replicas=(1, 2))
        self._version = version
        request = harness.produce_request([("r", 0, batch())], version=version, acks=-1, timeout_ms=1000)
        fast_path = produce_fast_path.fast_paths(harness.producing)(version)
        assert fast_path is not None
        self.answers: list[Any] = []
        self.later: Any = fast_path(harness.context(0, version), bytearray(encode(request, version)), 0)
        self.later.deliver_to(self.answers.append, None)
        assert self.answers == []

    def answer(self) -> PartitionProduceResponse:
        """The only response."""
        (parts,) = self.answers
        frame = b"".join(parts)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        start = 9 if self._version >= 9 else 8
        (topic,) = decode(ProduceResponse, self._version, frame[start:]).responses
        return topic.partition_responses[0]


@pytest.mark.parametrize("version", [7, 8, 9, 12, 13])
def test_a_waiting_produce_is_answered_once(harness, version):
    waiting = Waiting(harness, version)
    harness.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert (waiting.answer().error_code, waiting.answer().base_offset) == (0, 0)
    assert len(harness.timers) == 0


@pytest.mark.parametrize("version", [7, 13])
def test_a_waiting_produce_fails_with_the_handlers_response(harness, version):
    waiting = Waiting(harness, version)
    harness.timers.run_due(harness.mono_ms + 1000)
    assert (waiting.answer().error_code, waiting.answer().base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    harness.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert len(waiting.answers) == 1


def test_a_cancelled_produce_is_not_answered(harness):
    waiting = Waiting(harness, 13)
    waiting.later.cancel()
    assert len(harness.timers) == 0
    harness.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert waiting.answers == []


def test_only_a_produce_starts_behind_a_waiting_produce(harness):
    waiting = Waiting(harness, 13)
    assert waiting.later.can_pipeline(bytearray(b"\0\0\0\x0d"))
    assert not waiting.later.can_pipeline(bytearray(b"\0\1\0\x0d"))
