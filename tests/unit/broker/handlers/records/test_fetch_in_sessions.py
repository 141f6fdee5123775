"""Rules of broker/handlers/records/fetch.py within sessions (seeds.md F3), on real logs."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from replication.partition.replica_manager import MAX_LAG_MS
from tests.support.replica_harness import Client, World, batch, fetched, named, note_looks, offsets

ONE = len(batch())


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.create("t", partitions=3)
    return made


def code(answer, topic=0, partition=0):
    return fetched(answer, topic, partition).error_code


def test_incremental_answer_names_only_what_has_news(world):
    """Rule 4."""
    client = Client(world, max_wait_ms=0)
    world.load("t", 1)
    first = client.fetch({("t", index): 0 for index in range(3)})
    assert first.message.session_id == 1001
    assert named(first) == [("t", 0), ("t", 1), ("t", 2)]
    assert named(client.fetch({("t", 1): 1})) == []
    world.load("t", 2, batches=2)
    answer = client.fetch()
    assert named(answer) == [("t", 2)]
    assert offsets(fetched(answer)) == [0, 1]


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_records_come_again_until_the_client_moves_on(world, version):
    """Rule 2 of fetch_sessions.py: an answer may get lost."""
    client = Client(world, version=version, max_wait_ms=0)
    world.load("t", 1)
    client.fetch({("t", 1): 0})
    for _ in range(3):
        assert offsets(fetched(client.fetch())) == [0]
    assert client.fetch({("t", 1): 1}).message.responses == []


def test_error_comes_again_until_it_is_gone_and_then_the_bounds_are_told(world):
    """Rule 4: the client must hear that all is well again."""
    client = Client(world, max_wait_ms=0)
    client.fetch({("t", 0): 0, ("n", 0): 0})
    for _ in range(2):
        assert code(client.fetch()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.create("n")
    answer = client.fetch()
    assert named(answer) == [("n", 0)]
    assert (code(answer), fetched(answer).high_watermark) == (0, 0)
    assert named(client.fetch()) == []


def test_topic_that_appears_under_a_known_id_is_served(world):
    """Sessions by id: the name is found later."""
    world.create("n")
    topic_id = world.image.topics_by_name["n"].topic_id
    world.delete("n")
    client = Client(world, version=13, max_wait_ms=0)
    request = world.fetch_request({("n", 0): 0}, version=13, session=(0, 0))
    request.topics[0].topic_id = topic_id
    answer = world.fetching.handle(world.context(1, 13), request)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    world.topic_numbers = iter([int.from_bytes(topic_id, "big")])
    world.create("n")
    world.load("n")
    client.session = (answer.session_id, 1)
    assert offsets(fetched(client.fetch())) == [0]


def test_movement_of_the_high_watermark_alone_is_told_to_a_follower(world):
    """Rule 4 (F11)."""
    world.create("r", replicas=(1, 2, 3))
    world.load("r")
    follower = Client(world, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0})
    assert follower.fetch({("r", 0): 1}).message.responses == []
    world.fetch("r", offset=1, replica=3, max_wait_ms=0)
    answer = follower.fetch()
    assert fetched(answer).high_watermark == 1
    assert fetched(answer).records == b""
    assert follower.fetch().message.responses == []


def test_follower_with_nothing_to_fetch_is_caught_up_as_long_as_it_asks(world):
    """Rule 3 of replication/partition/follower_progress.py: a record that comes after a long rest is no lag, as little as in Apache Kafka."""
    world.create("r", replicas=(1, 2))
    follower = Client(world, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0, ("t", 0): 0})
    partition = world.replicas.find("r", 0)
    for _ in range(10):
        world.pass_time(10_000)
        follower.fetch()
    world.load("r")
    world.pass_time(MAX_LAG_MS)
    assert partition.isr_without_laggards(world.mono_ms, MAX_LAG_MS) is None
    follower.fetch({("t", 0): 0})  # it does not say that it has the record: it was caught up the last time, not now
    world.pass_time(1)
    assert partition.isr_without_laggards(world.mono_ms, MAX_LAG_MS) == (1,)


def test_follower_that_forgets_a_partition_is_not_caught_up_by_what_else_it_asks(world):
    """Rule 3 of replication/partition/follower_progress.py: only what is asked for counts."""
    world.create("r", replicas=(1, 2))
    follower = Client(world, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0, ("t", 0): 0})
    follower.fetch(forgotten=(("r", 0),))
    world.pass_time(MAX_LAG_MS + 1)
    follower.fetch()
    world.load("r")
    assert world.replicas.find("r", 0).isr_without_laggards(world.mono_ms, MAX_LAG_MS) == (1,)


def test_parked_incremental_fetch_is_woken_by_its_partitions(world):
    """F3 and F4 together."""
    client = Client(world)
    client.fetch({("t", index): 0 for index in range(3)}, max_wait_ms=0)
    answer = client.fetch()
    assert not answer.is_done
    world.load("t", 2)
    world.settle()
    assert named(answer) == [("t", 2)]
    answer = client.fetch({("t", 2): 1})
    world.pass_time(500)
    assert answer.message.responses == []
    assert answer.message.session_id == 1001


def test_incremental_fetch_and_wake_look_only_at_what_moved(world, monkeypatch):
    """D7: never at all partitions of a session."""
    world.create("many", partitions=100)
    client = Client(world, max_wait_ms=500)
    client.fetch({("many", index): 0 for index in range(100)}, max_wait_ms=0)
    looked = note_looks(world, monkeypatch)
    world.load("many", 5)
    client.fetch()
    assert looked == [5]
    looked.clear()
    answer = client.fetch({("many", 5): 1})
    world.load("many", 70)
    world.settle()
    assert looked == [5, 70]
    assert named(answer) == [("many", 70)]


def test_busy_partition_does_not_starve_the_others(world):
    """F9 in a session: who gave records goes to the end of the line."""
    for index in range(3):
        world.load("t", index, batches=20)
    client = Client(world, max_wait_ms=0, max_bytes=3 * ONE)
    positions = {("t", index): 0 for index in range(3)}
    answer = client.fetch(positions)
    served = []
    for _ in range(8):
        moved = {}
        for topic in answer.message.responses:
            for data in topic.partitions:
                if data.records:
                    served.append(data.partition_index)
                    moved["t", data.partition_index] = offsets(data)[-1] + 1
        answer = client.fetch(moved)
    assert served == [0, 1, 2, 0, 1, 2, 0, 1]


def test_partition_without_room_is_left_for_the_next_fetch(world):
    """Rule 3: it is neither lost nor told empty."""
    client = Client(world, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    for index in range(3):
        world.load("t", index)
    assert named(client.fetch(max_bytes=ONE)) == [("t", 0)]
    assert named(client.fetch({("t", 0): 1}, max_bytes=ONE)) == [("t", 1)]
    assert named(client.fetch({("t", 1): 1}, max_bytes=ONE)) == [("t", 2)]


@pytest.mark.parametrize(
    ("session", "version", "expected"),
    [
        ((77, 1), 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((1001, 5), 12, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((1001, 1), 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_session_error_is_of_the_whole_request(world, session, version, expected):
    """F3: no partition is served, and the session goes on."""
    client = Client(world, max_wait_ms=0)
    client.fetch({("t", 0): 0})
    answer = world.fetch_all({}, session=session, version=version)
    assert (answer.message.error_code, answer.message.session_id, answer.message.responses) == (expected, 0, [])
    assert client.fetch().message.error_code == 0


def test_session_resumed_elsewhere_answers_the_parked_request(world):
    """F3: a client that lost its connection comes back before the broker has noticed."""
    client = Client(world)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    world.load("t")
    lost = client.fetch(min_bytes=1000)
    assert not lost.is_done
    again = client.fetch(min_bytes=1)
    assert lost.message.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert offsets(fetched(again)) == [0]


def test_closed_connection_keeps_the_session_and_what_was_found(world):
    """F3: the next request of the session finds the records that the lost answer had."""
    client = Client(world)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    world.load("t")
    client.fetch(min_bytes=1000).pending.cancel()
    assert len(world.purgatory) == 0
    assert offsets(fetched(client.fetch(min_bytes=1))) == [0]


def test_session_that_nobody_heard_of_goes_with_its_connection(world):
    """F3: the id was never told."""
    answer = world.fetch("t", session=(0, 0))
    assert len(world.sessions) == 1
    answer.pending.cancel()
    assert len(world.sessions) == 0
    assert world.purgatory.watched_keys == 0


def test_evicted_session_answers_its_parked_request(world):
    """F3: with what there is; the client learns of it by its next request."""
    client = Client(world)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    answer = client.fetch()
    world.sessions.remove(1001)
    world.settle()
    assert answer.is_done
    assert world.purgatory.watched_keys == 0
    assert client.fetch().message.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_followers_progress_counts_though_there_is_no_room_for_more(world):
    """F5: who waits for acks=all on one partition does not wait for the records of others to be sent first."""
    world.create("r", partitions=3, replicas=(1, 2))
    for index in range(3):
        world.load("r", index, batches=5, size=1000)
    follower = Client(world, 12, replica=2, max_bytes=1100)
    follower.fetch({("r", index): 0 for index in range(3)})
    follower.fetch({("r", index): 2 for index in range(3)})
    assert [world.partition("r", index).high_watermark for index in range(3)] == [2, 2, 2]
