"""Which requests take the fast paths of Fetch and Produce. tests/property checks their responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.codec import encode
from storage.io.disk_lookup import DiskLookup
from tests.support.replica_harness import Client, ReplicaHarness, batch, fetched, offsets


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    made.load("t", batches=3)
    return made


def fetch_fast(harness: ReplicaHarness, version: int, places: Any = None, **request: Any) -> Any:
    """The fast path's response to a Fetch."""
    fast_path = harness.fetching.fast_path(version)
    made = harness.fetch_request({("t", 0): 1} if places is None else places, version=version, **request)
    made.replica_state = None
    return None if fast_path is None else fast_path(harness.context(1, version), bytearray(encode(made, version)), 0)


def produce_fast(harness: ReplicaHarness, version: int, acks: int = 1, records: Any = None) -> Any:
    """The fast path's response to a Produce."""
    fast_path = harness.producing.fast_path(version)
    made = harness.produce_request([("t", 0, batch() if records is None else records)], version=version, acks=acks)
    return None if fast_path is None else fast_path(harness.context(0, version), bytearray(encode(made, version)), 0)


@pytest.mark.parametrize("version", range(4, 19))
def test_a_plain_fetch_takes_the_fast_path(harness: ReplicaHarness, version: Any) -> None:
    assert (fetch_fast(harness, version) is not None) is (version >= 9)


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_a_fetch_at_the_end_that_waits_for_nothing_takes_the_fast_path(harness: ReplicaHarness, version: int) -> None:
    assert fetch_fast(harness, version, {("t", 0): 3}, max_wait_ms=0) is not None
    assert fetch_fast(harness, version, {("t", 0): 3}, max_wait_ms=1) is None
    assert fetch_fast(harness, version, {("t", 0): 4}, max_wait_ms=0) is None, "it is beyond the end"


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_a_session_with_one_dirty_partition_takes_the_fast_path(harness: ReplicaHarness, version: int) -> None:
    client = Client(harness, version, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    assert fetch_fast(harness, version, session=client.session) is not None
    client.session = (client.session[0], client.session[1] + 1)
    assert offsets(fetched(client.fetch())) == [1, 2]


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_of_several_partitions_takes_the_fast_path(harness: ReplicaHarness, version: Any) -> None:
    harness.load("t", 1)
    places = {("t", 0): 3, ("t", 1): 0}
    assert (fetch_fast(harness, version, places) is not None) is (version >= 9)


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_a_session_whose_dirty_partitions_are_all_named_takes_the_fast_path(
    harness: ReplicaHarness, version: int
) -> None:
    harness.load("t", 1)
    client = Client(harness, version, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    places = {("t", 2): 0, ("t", 0): 1}
    assert fetch_fast(harness, version, places, session=client.session) is None, "the second one is dirty too"
    places |= {("t", 1): 0}
    assert fetch_fast(harness, version, places, session=client.session, max_bytes=1) is None
    assert fetch_fast(harness, version, places, session=client.session, leader_epoch=0) is None, "it was -1"
    assert fetch_fast(harness, version, places, session=client.session) is not None
    client.session = (client.session[0], client.session[1] + 1)
    assert offsets(fetched(client.fetch())) == [1, 2]


@pytest.mark.parametrize(
    "request_",
    [
        {"places": {("t", 0): 1, ("u", 0): 0}, "min_bytes": 10_000},
        {"places": {("t", 0): 3, ("u", 0): 1}},
        {"places": {("t", 0): 1, ("u", 0): 2}},
        {"places": {("t", 0): 1, ("t", 2): 0}},
        {"places": {("t", 0): 1, ("unknown", 0): 0}},
        {"places": {("t", 0): 1, ("u", 0): 0}, "session": (0, 0)},
        {"places": {("t", 0): 1, ("u", 0): 0}, "session": (77, 3)},
        {"places": {}},
        {"places": {("t", 0): 3}},
        {"places": {("unknown", 0): 0}},
        {"rack": "rack2"},
        {"session": (0, 0)},
        {"session": (77, 3)},
        {"min_bytes": 10_000},
    ],
)
def test_other_fetch_layouts_are_left_to_the_handler(harness: ReplicaHarness, request_: Any) -> None:
    harness.create("u")
    harness.load("u")
    assert fetch_fast(harness, 12, **request_) is None


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_read_that_needs_the_disk_is_left_to_the_handler(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", 0): 0})
    dropped: list[bool] = []

    def read(*_: Any, **__: Any) -> Any:
        return DiskLookup(lambda: None, lambda _: None, None, lambda: dropped.append(True))

    with monkeypatch.context() as cold:
        cold.setattr(harness.replicas, "read", read)
        assert fetch_fast(harness, 12, session=client.session) is None
    assert dropped == [True], "else the log keeps it if the handler needs no lookup"
    assert offsets(fetched(client.fetch({("t", 0): 1}))) == [1, 2]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_plain_produce_takes_the_fast_path(harness: ReplicaHarness, version: Any) -> None:
    assert isinstance(produce_fast(harness, version), list) is (version >= 7)


def test_other_produce_layouts_are_left_to_the_handler(harness: ReplicaHarness) -> None:
    assert produce_fast(harness, 9, acks=0) is None
    assert produce_fast(harness, 9, records=batch(transactional=True, producer_id=1, base_sequence=0)) is None
    assert harness.partition().log.log_end_offset == 3


@pytest.fixture
def waiting(harness: ReplicaHarness) -> tuple[Any, list[Any]]:
    """A Produce for a partition with a follower that has not fetched it yet, and its answers."""
    harness.create("r", replicas=(1, 2))
    request = harness.produce_request([("r", 0, batch())], version=13, acks=-1, timeout_ms=1000)
    fast_path: Any = harness.producing.fast_path(13)
    later: Any = fast_path(harness.context(0, 13), bytearray(encode(request, 13)), 0)
    answers: list[Any] = []
    later.then(lambda late: answers.append(late.result()))
    assert answers == []
    return later, answers


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_waiting_produce_is_answered_once_unless_cancelled(
    harness: ReplicaHarness, waiting: tuple[Any, list[Any]], *, is_cancelled: bool
) -> None:
    later, answers = waiting
    if is_cancelled:
        later.cancel()
        assert len(harness.timers) == 0
    harness.fetch("r", offset=1, replica=2, max_wait_ms=0)
    assert len(answers) == (0 if is_cancelled else 1)
    assert len(harness.timers) == 0
