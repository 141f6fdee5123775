"""Which requests take the short cuts of Fetch and Produce; that the answers are the handlers' own: tests/property."""

from __future__ import annotations

from typing import Any

import pytest

from broker.handlers.records import fetch_fast_path, produce_fast_path
from protocol.codec import decode, encode
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import PartitionProduceResponse, ProduceResponse
from storage.io.would_block import WouldBlock
from tests.support.replica_harness import Client, World, batch, fetched, offsets


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.create("t", partitions=3)
    made.load("t", batches=3)
    return made


def fetch_by_shortcut(world: World, version: int, places: Any = None, **request: Any) -> Any:
    """What the short cut says to a Fetch."""
    shortcut = fetch_fast_path.shortcuts(world.fetching)(version)
    made = world.fetch_request({("t", 0): 1} if places is None else places, version=version, **request)
    made.replica_state = None
    return None if shortcut is None else shortcut(world.context(1, version), bytearray(encode(made, version)), 0)


def produce_by_shortcut(world: World, version: int, acks: int = 1, records: Any = None) -> Any:
    """What the short cut says to a Produce."""
    shortcut = produce_fast_path.shortcuts(world.producing)(version)
    made = world.produce_request([("t", 0, batch() if records is None else records)], version=version, acks=acks)
    return None if shortcut is None else shortcut(world.context(0, version), bytearray(encode(made, version)), 0)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_plain_consumers_fetch_takes_the_short_cut(world, version):
    """From version 9 on."""
    assert (fetch_by_shortcut(world, version) is not None) is (version >= 9)


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_a_session_with_one_moving_partition_takes_the_short_cut(world, version):
    """The session goes on afterwards as if the handler had answered."""
    client = Client(world, version, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    assert fetch_by_shortcut(world, version, session=client.session) is not None
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
def test_an_unusual_fetch_is_left_to_the_handler(world, request_):
    """Rule 2 of fetch_shortcut.py."""
    assert fetch_by_shortcut(world, 12, **request_) is None


def test_what_the_disk_must_be_asked_for_is_left_to_the_handler(world, monkeypatch):
    """Rule 2 of fetch_shortcut.py: the session has not gone on."""
    client = Client(world, max_wait_ms=0)
    client.fetch({("t", 0): 0})

    def read(*_: Any, **__: Any) -> Any:
        raise WouldBlock(lambda: None, lambda _: None)

    with monkeypatch.context() as cold:
        cold.setattr(world.replicas, "read", read)
        assert fetch_by_shortcut(world, 12, session=client.session) is None
    assert offsets(fetched(client.fetch({("t", 0): 1}))) == [1, 2]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_plain_producers_batch_takes_the_short_cut(world, version):
    """From version 7 on."""
    assert isinstance(produce_by_shortcut(world, version), list) is (version >= 7)


def test_an_unusual_produce_is_left_to_the_handler(world):
    """Rule 2 of produce_shortcut.py: nothing is appended."""
    assert produce_by_shortcut(world, 9, acks=0) is None
    assert produce_by_shortcut(world, 9, records=batch(transactional=True, producer_id=1, base_sequence=0)) is None
    assert produce_by_shortcut(world, 9, records=batch()[:60]) is None
    assert world.partition().log.log_end_offset == 3


def test_a_refusal_is_the_handlers(world):
    """Rule 3 of produce_shortcut.py."""
    broken = batch()
    broken[30] ^= 1
    answer = produce_by_shortcut(world, 9, records=broken)
    assert answer.responses[0].partition_responses[0].error_code == 2


class Waiting:
    """A Produce for a partition with a follower, which has not fetched it yet."""

    def __init__(self, world: World, version: int) -> None:
        world.create("r", replicas=(1, 2))
        self._version = version
        request = world.produce_request([("r", 0, batch())], version=version, acks=-1, timeout_ms=1000)
        shortcut = produce_fast_path.shortcuts(world.producing)(version)
        assert shortcut is not None
        self.answers: list[Any] = []
        self.later: Any = shortcut(world.context(0, version), bytearray(encode(request, version)), 0)
        self.later.deliver_to(self.answers.append, None)
        assert self.answers == []

    def answer(self) -> PartitionProduceResponse:
        """The only one."""
        (parts,) = self.answers
        frame = b"".join(parts)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        start = 9 if self._version >= 9 else 8
        (topic,) = decode(ProduceResponse, self._version, frame[start:]).responses
        return topic.partition_responses[0]


@pytest.mark.parametrize("version", [7, 8, 9, 12, 13])
def test_a_produce_that_waits_is_answered_once_when_it_ends(world, version):
    """Rule 3 of produce_shortcut.py: in parts; its deadline is forgotten."""
    waiting = Waiting(world, version)
    world.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert (waiting.answer().error_code, waiting.answer().base_offset) == (0, 0)
    assert len(world.deadlines) == 0


@pytest.mark.parametrize("version", [7, 13])
def test_a_produce_that_waits_fails_as_the_handler_says(world, version):
    """Rule 3 of produce_shortcut.py: when its time is over, and what comes then is not told; when the leader is another."""
    waiting = Waiting(world, version)
    world.deadlines.run_due(world.mono_ms + 1000)
    assert (waiting.answer().error_code, waiting.answer().base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    world.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert len(waiting.answers) == 1


def test_a_produce_that_nobody_waits_for_is_not_answered(world):
    """The connection has gone: neither the follower nor the time tells anybody."""
    waiting = Waiting(world, 13)
    waiting.later.cancel()
    assert len(world.deadlines) == 0
    world.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert waiting.answers == []


def test_only_a_produce_is_begun_behind_one_that_waits(world):
    """What else comes behind it sees what it has done."""
    waiting = Waiting(world, 13)
    assert waiting.later.lets_begin(bytearray(b"\0\0\0\x0d"))
    assert not waiting.later.lets_begin(bytearray(b"\0\1\0\x0d"))
