"""Rules of broker/handlers/fetch.py and rows F1-F11 of the founding documents, on real logs."""

from __future__ import annotations

import random

import pytest

from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.records import FileRegion
from tests.support.replica_world import World, batch, fetched, named, offsets

ONE = len(batch())


class Deny:
    """Refuses what it is told to: (operation, resource type, name or None)."""

    def __init__(self, *denied):
        self.denied = set(denied)

    def authorize(self, principal, operation, resource_type, resource_name):
        return not self.denied & {(operation, resource_type, resource_name), (operation, resource_type, None)}


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.create("t", partitions=3)
    return made


def note_looks(world, monkeypatch):
    """The partitions that are looked at from now on."""
    looked = []
    read = world.replicas.read

    def note(topic, index, *rest, **more):
        looked.append(index)
        return read(topic, index, *rest, **more)

    monkeypatch.setattr(world.replicas, "read", note)
    return looked


def code(answer, topic=0, partition=0):
    return fetched(answer, topic, partition).error_code


# ---------------------------------------------------------------- what is there


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_gets_the_records(world, version):
    """F11: records, high watermark, last stable offset and log start in every version."""
    world.load("t", 1, batches=3)
    data = fetched(world.fetch("t", 1, 1, version=version))
    assert (data.partition_index, data.error_code) == (1, 0)
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    assert offsets(data) == [1, 2]
    assert data.preferred_read_replica == -1
    assert data.aborted_transactions is None


def test_records_are_regions_of_files_never_bytes(world):
    """Rule 5 (Z1)."""
    world.load("t", batches=2)
    request = world.fetch_request({("t", 0): 0})
    answer = world.fetching.handle(world.context(1, 12), request)
    records = answer.responses[0].partitions[0].records
    assert all(isinstance(region, FileRegion) for region in records)
    assert sum(region.length for region in records) == 2 * ONE


def test_offset_inside_a_batch_gives_the_whole_batch(world):
    """F8: batches are never cut at the front."""
    world.produce("t", 0, batch(count=10))
    assert offsets(fetched(world.fetch("t", 0, 7))) == [0]


def test_committed_reader_gets_the_list_of_aborted_transactions(world):
    """F10: an empty list, where another reader gets none."""
    world.load("t")
    assert fetched(world.fetch("t", isolation=1)).aborted_transactions == []


# ---------------------------------------------------------------- F1: who reads


def test_consumer_without_read_is_refused_there_and_served_elsewhere(tmp_path):
    """F1."""
    world = World(tmp_path, authorizer=Deny((Operation.READ, Resource.TOPIC, "secret")))
    for name in ("open", "secret"):
        world.create(name)
        world.load(name)
    answer = world.fetch_all({("secret", 0): 0, ("open", 0): 0})
    assert code(answer, 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert offsets(fetched(answer, 1)) == [0]
    follower = world.fetch_all({("secret", 0): 0}, replica=2, version=16)
    assert code(follower) == ErrorCode.NOT_LEADER_OR_FOLLOWER  # for it is none, not for want of a right


@pytest.mark.parametrize("version", [12, 16])
def test_follower_without_cluster_action_is_refused_everywhere(tmp_path, version):
    """F1."""
    world = World(tmp_path, authorizer=Deny((Operation.CLUSTER_ACTION, Resource.CLUSTER, None)))
    world.create("t", replicas=(1, 2))
    world.load("t")
    assert code(world.fetch("t", replica=2, version=version)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code(world.fetch("t", version=version, max_wait_ms=0)) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "expected"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_unknown_topic_is_told_by_name_or_by_id_and_others_are_served(world, version, expected):
    """F1."""
    world.load("t")
    answer = world.fetch_all({("nowhere", 0): 0, ("t", 0): 0, ("t", 9): 0}, version=version)
    assert code(answer, 0) == expected
    assert offsets(fetched(answer, 1)) == [0]
    assert code(answer, 1, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (fetched(answer, 0).high_watermark, fetched(answer, 0).log_start_offset) == (-1, -1)
    assert fetched(answer, 0).records == b""


def test_debugging_consumer_may_read_a_replica_that_does_not_lead_up_to_the_high_watermark(world):
    """F1: replica id -2."""
    world.create("r", replicas=(1, 2))
    world.load("r", batches=3)
    world.fetch("r", 0, 2, replica=2)
    world.change("r", leader=2)
    assert offsets(fetched(world.fetch("r", replica=-2))) == [0, 1]
    assert code(world.fetch("r", version=10)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


# ---------------------------------------------------------------- F2: isolation


def test_consumer_reads_to_the_high_watermark_follower_to_the_end(world):
    """F2."""
    world.create("r", replicas=(1, 2))
    world.load("r", batches=4)
    assert offsets(fetched(world.fetch("r", replica=2, offset=2))) == [2, 3]
    assert offsets(fetched(world.fetch("r"))) == [0, 1]
    behind = fetched(world.fetch("r", offset=3, max_wait_ms=0))
    assert (behind.error_code, behind.records) == (0, b"")


# ---------------------------------------------------------------- F4: when to answer


def test_nothing_asked_is_answered_at_once(world):
    """F4."""
    answer = world.fetch_all({})
    assert answer.is_done
    assert answer.message.responses == []


def test_no_wait_wanted_is_answered_at_once(world):
    """F4."""
    assert fetched(world.fetch("t", max_wait_ms=0)).records == b""


def test_min_bytes_not_there_waits_until_they_are(world):
    """F4: it is the sum over the partitions that counts."""
    answer = world.fetch_all({("t", 0): 0, ("t", 1): 0}, min_bytes=2 * ONE)
    world.load("t", 0)
    world.settle()
    assert not answer.is_done
    world.load("t", 1)
    assert not answer.is_done
    world.settle()
    assert [offsets(fetched(answer, 0, index)) for index in (0, 1)] == [[0], [0]]
    assert len(world.purgatory) == world.purgatory.watched_keys == 0


def test_zero_min_bytes_are_always_there(world):
    """F4."""
    assert world.fetch("t", min_bytes=0).is_done


def test_min_bytes_above_max_bytes_are_cut_to_them(world):
    """F4: else such a fetch would always wait."""
    world.load("t", batches=3)
    assert offsets(fetched(world.fetch("t", min_bytes=10**6, max_bytes=ONE))) == [0]


def test_any_error_is_answered_at_once(world):
    """F4."""
    answer = world.fetch_all({("t", 0): 0, ("t", 1): 99}, min_bytes=1000)
    assert (code(answer, 0, 0), code(answer, 0, 1)) == (0, ErrorCode.OFFSET_OUT_OF_RANGE)


def test_deadline_answers_with_what_there_is(world):
    """F4."""
    answer = world.fetch("t", min_bytes=1000, max_wait_ms=500)
    world.load("t")
    world.settle()
    world.pass_time(499)
    assert not answer.is_done
    world.pass_time(1)
    assert offsets(fetched(answer)) == [0]
    assert len(world.purgatory) == world.purgatory.watched_keys == len(world.deadlines) == 0


def test_lost_leadership_answers_a_parked_fetch(world):
    """F4: an error, with who leads now; a consumer that knows of racks may read on from a follower (KIP-392)."""
    world.create("r", replicas=(1, 2))
    old, knows_epoch, knows_racks = world.fetch("r", version=10), world.fetch("r", leader_epoch=0), world.fetch("r")
    world.change("r", leader=2)
    world.settle()
    assert code(old) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(knows_epoch) == ErrorCode.FENCED_LEADER_EPOCH
    assert not knows_racks.is_done
    world.change("r", leader=2, replicas=[2], isr=[2])
    world.settle()
    assert code(knows_racks) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleted_topic_answers_a_parked_fetch(world):
    """F4."""
    by_name, by_id = world.fetch("t", version=12), world.fetch("t", version=16)
    world.delete("t")
    world.settle()
    assert code(by_name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(by_id) == ErrorCode.UNKNOWN_TOPIC_ID


def test_closed_connection_leaves_nothing_behind(world):
    """F4: the waiter goes with its connection."""
    answer = world.fetch_all({("t", 0): 0, ("t", 1): 0})
    assert (len(world.purgatory), world.purgatory.watched_keys) == (1, 2)
    answer.pending.cancel()
    assert len(world.purgatory) == world.purgatory.watched_keys == len(world.deadlines) == 0
    world.load("t")
    world.settle()
    assert not answer.is_done


def test_wake_looks_only_at_what_moved(world, monkeypatch):
    """Rule 2 (D7)."""
    world.create("many", partitions=50)
    answer = world.fetch_all({("many", index): 0 for index in range(50)}, min_bytes=2 * ONE)
    looked = note_looks(world, monkeypatch)
    world.load("many", 17)
    world.settle()
    world.load("many", 3)
    world.settle()
    assert looked == [17, 3]
    assert named(answer) == [("many", index) for index in range(50)]
    assert [index for index in range(50) if fetched(answer, 0, index).records] == [3, 17]


# ---------------------------------------------------------------- F5: followers


def test_followers_fetch_moves_the_high_watermark_and_wakes_consumers(world):
    """F5."""
    world.create("r", replicas=(1, 2))
    produce = world.produce("r", acks=-1)
    consumer = world.fetch("r")
    assert not produce.is_done
    first = world.fetch("r", replica=2, version=17)
    assert offsets(fetched(first)) == [0]
    world.settle()
    assert not consumer.is_done
    second = world.fetch("r", offset=1, replica=2, version=17)
    assert produce.message.responses[0].partition_responses[0].error_code == 0
    assert not second.is_done
    world.settle()
    assert offsets(fetched(consumer)) == [0]
    assert not second.is_done


def test_append_wakes_a_parked_follower_before_it_is_committed(world):
    """F5, F2: a follower waits for the log's end, not for the high watermark."""
    world.create("r", replicas=(1, 2))
    follower, consumer = world.fetch("r", replica=2), world.fetch("r")
    world.produce("r", acks=1)
    world.settle()
    assert offsets(fetched(follower)) == [0]
    assert not consumer.is_done


def test_diverging_follower_is_told_at_once(world):
    """F4: where its log stops agreeing."""
    world.create("r", replicas=(1, 2), epoch=1)
    world.load("r", batches=3)
    world.change("r", leader=1)
    world.change("r", leader=1)
    world.load("r", batches=1)
    data = fetched(world.fetch("r", offset=5, replica=2, last_fetched_epoch=2, leader_epoch=3))
    assert data.error_code == 0
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, 3)
    assert data.records == b""
    assert world.partition("r").followers[2].end_offset == -1


def test_stranger_that_fetches_as_a_follower_is_refused(world):
    """F5."""
    assert code(world.fetch("t", replica=3)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(world.fetch("t", replica=3, leader_epoch=0)) == ErrorCode.UNKNOWN_LEADER_EPOCH


# ---------------------------------------------------------------- F6: leader checks


def test_reader_with_another_leader_epoch_is_refused(world):
    """F6."""
    world.create("e", epoch=5)
    answers = {epoch: code(world.fetch("e", leader_epoch=epoch, max_wait_ms=0)) for epoch in (4, 5, 6, -1)}
    assert answers == {
        4: ErrorCode.FENCED_LEADER_EPOCH,
        5: ErrorCode.NONE,
        6: ErrorCode.UNKNOWN_LEADER_EPOCH,
        -1: ErrorCode.NONE,
    }


@pytest.mark.parametrize("version", [11, 12, 16])
def test_who_leads_now_is_told_with_the_error(world, version):
    """KIP-951: leader, epoch and where it listens, from version 16 on."""
    world.create("r", replicas=(2, 3), leader=2, epoch=7)
    answer = world.fetch("r", version=version)
    data = fetched(answer)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 16:
        assert data.current_leader is None
    else:
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 7)
    endpoints = [(node.node_id, node.host, node.port, node.rack) for node in answer.message.node_endpoints]
    assert endpoints == ([(2, "host2", 9002, "rack2")] if version >= 16 else [])


@pytest.mark.parametrize("offset", [-1, 4, 1000])
def test_offset_outside_the_log_is_out_of_range(world, offset):
    """F6."""
    world.load("t", batches=3)
    data = fetched(world.fetch("t", offset=offset))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)


def test_offset_at_the_end_is_empty(world):
    """F6."""
    world.load("t", batches=3)
    data = fetched(world.fetch("t", offset=3, max_wait_ms=0))
    assert (data.error_code, data.high_watermark, data.records) == (0, 3, b"")


# ---------------------------------------------------------------- F9: limits


def test_first_batch_comes_whole_however_small_the_limits(world):
    """F9: per partition and per answer."""
    world.produce("t", 0, batch(size=5000))
    world.load("t", 0)
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
        assert offsets(fetched(world.fetch("t", **limits))) == [0]


def test_only_the_first_partition_with_records_may_exceed_the_limits(world):
    """F9: an empty partition before it does not use up the exception."""
    for index in (1, 2):
        world.produce("t", index, batch(size=5000))
    answer = world.fetch_all({("t", 0): 0, ("t", 1): 0, ("t", 2): 0}, partition_max_bytes=100)
    assert [offsets(fetched(answer, 0, index)) for index in range(3)] == [[], [0], []]
    assert fetched(answer, 0, 2).high_watermark == 1


def test_max_bytes_hold_over_all_partitions(world):
    """F9."""
    for index in range(3):
        world.load("t", index, batches=10)
    answer = world.fetch_all({("t", index): 0 for index in range(3)}, max_bytes=15 * ONE)
    assert [len(offsets(fetched(answer, 0, index))) for index in range(3)] == [10, 5, 0]


def test_partition_max_bytes_hold_for_each(world):
    """F9."""
    for index in range(3):
        world.load("t", index, batches=10)
    answer = world.fetch_all({("t", index): 0 for index in range(3)}, partition_max_bytes=3 * ONE)
    assert [len(offsets(fetched(answer, 0, index))) for index in range(3)] == [3, 3, 3]


# ---------------------------------------------------------------- rack


def test_consumer_is_sent_to_another_replica(world):
    """F4: at once, without records; only for versions that carry the rack."""
    world.create("r", replicas=(1, 2))
    world.load("r")
    world.fetch("r", offset=1, replica=2)
    world.fetching.select_replica = lambda topic, index, rack, ctx: 2 if rack == "rack2" else 1
    data = fetched(world.fetch("r", rack="rack2", min_bytes=10**6))
    assert (data.preferred_read_replica, data.records, data.high_watermark) == (2, b"", 1)
    assert offsets(fetched(world.fetch("r", rack="rack1"))) == [0]
    assert offsets(fetched(world.fetch("r", version=10))) == [0]


# ---------------------------------------------------------------- F3: sessions


class Client:
    """A client with an incremental session, as Kafka's own behaves."""

    def __init__(self, world, version=12, **request):
        self.world, self.version, self.request = world, version, request
        self.session = (0, 0)

    def fetch(self, positions=None, **request):
        answer = self.world.fetch_all(
            positions or {}, version=self.version, session=self.session, **{**self.request, **request}
        )
        self.session = (self.session[0], self.session[1] + 1)
        if answer.is_done and answer.message.session_id:
            self.session = (answer.message.session_id, self.session[1])
        return answer


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


# ---------------------------------------------------------------- all together


def test_consumers_with_and_without_sessions_read_everything_once_in_order(tmp_path):
    """F3, F4, F9 as a property: random producers, limits and waits; every reader gets each offset once, in order."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    world = World(tmp_path)
    partitions = 6
    world.create("t", partitions=partitions)
    ends = dict.fromkeys(range(partitions), 0)
    readers = [Client(world, version) for version in (6, 7, 12, 13, 18)]
    states = []
    for reader in readers:
        if reader.version < 7:
            reader.session = (0, -1)
        states.append({"next": dict.fromkeys(range(partitions), 0), "answer": None, "told": {}, "session": reader})

    def take(state):
        answer, reader = state["answer"], state["session"]
        assert answer.message.error_code == 0, f"seed {seed}"
        if reader.version >= 7:
            reader.session = (answer.message.session_id, reader.session[1])
        for topic in answer.message.responses:
            for data in topic.partitions:
                assert data.error_code == 0, f"seed {seed}"
                for offset in offsets(data):
                    if offset < state["next"][data.partition_index]:
                        continue
                    assert offset == state["next"][data.partition_index], f"seed {seed}"
                    state["next"][data.partition_index] += 1
        state["answer"] = None

    for turn in range(400):
        if turn < 300 and chance.random() < 0.5:
            index = chance.randrange(partitions)
            world.load("t", index, size=chance.choice((1, 100, 3000)))
            ends[index] += 1
        if chance.random() < 0.5:
            world.settle()
        if chance.random() < 0.3:
            world.pass_time(chance.randrange(300))
        for state in states:
            if state["answer"] is not None:
                if state["answer"].is_done:
                    take(state)
                continue
            reader = state["session"]
            wanted = {
                ("t", index): offset
                for index, offset in state["next"].items()
                if reader.version < 7 or state["told"].get(index) != offset
            }
            state["told"] = dict(state["next"])
            if reader.version < 7:
                reader.session = (0, -1)
            state["answer"] = reader.fetch(
                wanted,
                max_wait_ms=chance.choice((0, 1, 200)),
                min_bytes=chance.choice((0, 1, 5000)),
                max_bytes=chance.choice((1, 4000, 10**6)),
                partition_max_bytes=chance.choice((1, 500, 10**6)),
            )
    for _ in range(3000):
        for state in states:
            reader = state["session"]
            if state["answer"] is None:
                if reader.version < 7:
                    reader.session = (0, -1)
                wanted = {("t", index): offset for index, offset in state["next"].items()}
                state["answer"] = reader.fetch(wanted, max_wait_ms=0, max_bytes=10**7, partition_max_bytes=10**7)
            world.pass_time(200)
            take(state)
        if all(state["next"] == ends for state in states):
            break
    assert all(state["next"] == ends for state in states), f"seed {seed}"
    assert len(world.purgatory) == 0
