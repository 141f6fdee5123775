"""Fetch within sessions, on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.security.standard_authorizer import StandardAuthorizer
from protocol.errors import ErrorCode
from replication.metadata.acls import Acl, OperationCode, PatternCode, PermissionCode, ResourceCode
from replication.partition.replica_manager import MAX_LAG_MS
from tests.support.replica_harness import Answer, Client, ReplicaHarness, batch, fetched, named, note_looks, offsets

ONE = len(batch())


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    return made


def code(answer: Answer, topic: int = 0, partition: int = 0) -> Any:
    return fetched(answer, topic, partition).error_code


def test_an_error_repeats_and_the_offsets_follow_it(harness: ReplicaHarness) -> None:
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", 0): 0, ("n", 0): 0})
    for _ in range(2):
        assert code(client.fetch()) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.create("n")
    answer = client.fetch()
    assert named(answer) == [("n", 0)]
    assert (code(answer), fetched(answer).high_watermark) == (0, 0)
    assert named(client.fetch()) == []


def test_a_topic_created_during_the_session_is_served(harness: ReplicaHarness) -> None:
    harness.create("n")
    topic_id = harness.image.topics_by_name["n"].topic_id
    harness.delete("n")
    client = Client(harness, version=13, max_wait_ms=0)
    request = harness.fetch_request({("n", 0): 0}, version=13, session=(0, 0))
    request.topics[0].topic_id = topic_id
    answer: Any = harness.fetching.handle(harness.context(1, 13), request)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    harness.topic_numbers = iter([int.from_bytes(topic_id, "big")])
    harness.create("n")
    harness.load("n")
    client.session = (answer.session_id, 1)
    assert offsets(fetched(client.fetch())) == [0]


def test_a_session_is_told_that_its_topic_was_deleted_and_that_another_has_its_name(harness: ReplicaHarness) -> None:
    """As in Apache Kafka: UNKNOWN_TOPIC_ID is for an id that was never known."""
    client = Client(harness, version=13, max_wait_ms=0)
    client.fetch({("t", 0): 0, ("t", 1): 0})
    harness.delete("t")
    answer = client.fetch()
    assert {code(answer, 0, index) for index in (0, 1)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    harness.create("t", partitions=1)
    answer = client.fetch()
    codes = {one.partition_index: one.error_code for topic in answer.message.responses for one in topic.partitions}
    assert codes == {0: ErrorCode.INCONSISTENT_TOPIC_ID, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_consumer_at_the_end_of_a_log_gets_the_error_when_its_right_is_withdrawn(tmp_path: Path) -> None:
    """Also of partitions without new records, which are not read otherwise."""
    authorizer = StandardAuthorizer()
    authorizer.update({bytes(16): _allow("t"), b"n" * 16: _allow("n")})
    harness = ReplicaHarness(tmp_path, authorizer=authorizer)
    for name in ("t", "n"):
        harness.create(name)
        harness.load(name)
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", 0): 1, ("n", 0): 1})
    assert named(client.fetch()) == []
    authorizer.update({b"n" * 16: _allow("n")})
    for _ in range(2):
        answer = client.fetch()
        assert (named(answer), code(answer)) == ([("t", 0)], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    authorizer.update({bytes(16): _allow("t"), b"n" * 16: _allow("n")})
    answer = client.fetch()
    assert (named(answer), code(answer)) == ([("t", 0)], ErrorCode.NONE)
    assert named(client.fetch()) == []


def test_records_of_an_open_transaction_follow_when_a_session_no_longer_wants_only_committed_ones(
    harness: ReplicaHarness,
) -> None:
    """The partition has not changed, but the client may see more of it."""
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", 0): 0}, isolation=1)
    harness.append(records=batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True), acks=1)
    client.fetch(isolation=1)
    assert named(client.fetch(isolation=1)) == []
    assert offsets(fetched(client.fetch(isolation=0))) == [0]


def _allow(topic: str) -> Acl:
    return Acl(ResourceCode.TOPIC, topic, PatternCode.LITERAL, "User:*", "*", OperationCode.ALL, PermissionCode.ALLOW)


def test_a_new_high_watermark_completes_a_follower_fetch(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2, 3))
    harness.load("r")
    follower = Client(harness, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0})
    assert follower.fetch({("r", 0): 1}).message.responses == []
    harness.fetch("r", offset=1, replica=3, max_wait_ms=0)
    answer = follower.fetch()
    assert fetched(answer).high_watermark == 1
    assert fetched(answer).records == b""
    assert follower.fetch().message.responses == []


def test_a_follower_in_a_new_leader_epoch_gets_the_high_watermark_again(harness: ReplicaHarness) -> None:
    """It ignored the last response, which was for the epoch before."""
    harness.create("r", replicas=(1, 2))
    harness.load("r")
    follower = Client(harness, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 1}, leader_epoch=0)
    assert fetched(follower.fetch()).high_watermark == 1
    harness.change("r", leader=1)
    answer = follower.fetch({("r", 0): 1}, leader_epoch=1)
    assert (fetched(answer).error_code, fetched(answer).high_watermark) == (ErrorCode.NONE, 1)


def test_a_follower_gets_the_high_watermark_after_a_truncation(harness: ReplicaHarness) -> None:
    """It takes only the diverging epoch from the response that has one."""
    harness.create("r", replicas=(1, 2), isr=(1,), epoch=1)
    harness.load("r", batches=3)
    for _ in range(2):
        harness.change("r", leader=1)
    follower = Client(harness, max_wait_ms=0, replica=2, leader_epoch=3)
    assert fetched(follower.fetch({("r", 0): 5}, last_fetched_epoch=2)).diverging_epoch.end_offset == 3
    answer = follower.fetch({("r", 0): 3}, last_fetched_epoch=1)
    assert (fetched(answer).diverging_epoch, fetched(answer).high_watermark) == (None, 3)


def test_a_follower_without_new_records_stays_caught_up(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    follower = Client(harness, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0, ("t", 0): 0})
    partition = harness.replicas.find("r", 0)
    for _ in range(10):
        harness.pass_time(10_000)
        follower.fetch()
    harness.load("r")
    harness.pass_time(MAX_LAG_MS)
    assert partition.shrunk_isr(harness.mono_ms, MAX_LAG_MS) is None
    follower.fetch({("t", 0): 0})  # it does not say that it has the record: it was caught up the last time, not now
    harness.pass_time(1)
    assert partition.shrunk_isr(harness.mono_ms, MAX_LAG_MS) == (1,)


def test_a_forgotten_partition_does_not_stay_caught_up(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    follower = Client(harness, max_wait_ms=0, replica=2)
    follower.fetch({("r", 0): 0, ("t", 0): 0})
    follower.fetch(forgotten=(("r", 0),))
    harness.pass_time(MAX_LAG_MS + 1)
    follower.fetch()
    harness.load("r")
    assert harness.replicas.find("r", 0).shrunk_isr(harness.mono_ms, MAX_LAG_MS) == (1,)


def test_a_late_request_of_an_earlier_session_does_not_remove_a_follower_that_has_everything(
    harness: ReplicaHarness,
) -> None:
    """The leader was stalled: it reads a request of the follower's earlier connection after those of the present one."""
    harness.create("r", replicas=(1, 2))
    follower = Client(harness, max_wait_ms=0, replica=2)
    harness.load("r")
    follower.fetch({("r", 0): 1})
    follower.fetch()  # with the high watermark
    Client(harness, max_wait_ms=0, replica=2).fetch({("r", 0): 0})
    partition = harness.replicas.find("r", 0)
    for _ in range(2):
        harness.pass_time(MAX_LAG_MS)
        follower.fetch()
    assert partition.shrunk_isr(harness.mono_ms, MAX_LAG_MS) is None
    assert partition.followers[2].end_offset == 1


def test_a_waiting_incremental_fetch_is_woken_by_its_partitions(harness: ReplicaHarness) -> None:
    client = Client(harness)
    client.fetch({("t", index): 0 for index in range(3)}, max_wait_ms=0)
    answer = client.fetch()
    assert not answer.is_done
    harness.load("t", 2)
    harness.drain_purgatory()
    assert named(answer) == [("t", 2)]
    answer = client.fetch({("t", 2): 1})
    harness.pass_time(500)
    assert answer.message.responses == []
    assert answer.message.session_id == 1001


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_an_incremental_fetch_reads_only_changed_partitions(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create("many", partitions=100)
    client = Client(harness, max_wait_ms=500)
    client.fetch({("many", index): 0 for index in range(100)}, max_wait_ms=0)
    looked = note_looks(harness, monkeypatch)
    harness.load("many", 5)
    client.fetch()
    assert looked == [5]
    looked.clear()
    answer = client.fetch({("many", 5): 1})
    harness.load("many", 70)
    harness.drain_purgatory()
    assert looked == [5, 70]
    assert named(answer) == [("many", 70)]


def test_busy_partition_does_not_starve_the_others(harness: ReplicaHarness) -> None:
    for index in range(3):
        harness.load("t", index, batches=20)
    client = Client(harness, max_wait_ms=0, max_bytes=3 * ONE)
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


def test_a_partition_beyond_max_bytes_is_left_for_the_next_fetch(harness: ReplicaHarness) -> None:
    client = Client(harness, max_wait_ms=0)
    client.fetch({("t", index): 0 for index in range(3)})
    for index in range(3):
        harness.load("t", index)
    assert named(client.fetch(max_bytes=ONE)) == [("t", 0)]
    assert named(client.fetch({("t", 0): 1}, max_bytes=ONE)) == [("t", 1)]
    assert named(client.fetch({("t", 1): 1}, max_bytes=ONE)) == [("t", 2)]


def test_a_newer_request_of_the_session_completes_the_waiting_one(harness: ReplicaHarness) -> None:
    client = Client(harness)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    harness.load("t")
    lost = client.fetch(min_bytes=1000)
    assert not lost.is_done
    again = client.fetch(min_bytes=1)
    assert lost.message.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert offsets(fetched(again)) == [0]


def test_a_closed_connection_keeps_the_session_and_its_dirty_partitions(harness: ReplicaHarness) -> None:
    client = Client(harness)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    harness.load("t")
    client.fetch(min_bytes=1000).pending.cancel()
    assert len(harness.purgatory) == 0
    assert offsets(fetched(client.fetch(min_bytes=1))) == [0]


def test_a_session_with_an_unsent_id_is_closed_with_its_connection(harness: ReplicaHarness) -> None:
    answer = harness.fetch("t", session=(0, 0))
    assert len(harness.sessions) == 1
    answer.pending.cancel()
    assert len(harness.sessions) == 0
    assert len(harness.purgatory._watchers) == 0


def test_an_evicted_session_completes_its_waiting_request(harness: ReplicaHarness) -> None:
    client = Client(harness)
    client.fetch({("t", 0): 0}, max_wait_ms=0)
    answer = client.fetch()
    harness.sessions.remove(1001)
    harness.drain_purgatory()
    assert answer.is_done
    assert len(harness.purgatory._watchers) == 0
    assert client.fetch().message.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_fetch_beyond_max_bytes_still_acknowledges(harness: ReplicaHarness) -> None:
    harness.create("r", partitions=3, replicas=(1, 2))
    for index in range(3):
        harness.load("r", index, batches=5, size=1000)
    follower = Client(harness, 12, replica=2, max_bytes=1100)
    follower.fetch({("r", index): 0 for index in range(3)})
    follower.fetch({("r", index): 2 for index in range(3)})
    assert [harness.partition("r", index).high_watermark for index in range(3)] == [2, 2, 2]
