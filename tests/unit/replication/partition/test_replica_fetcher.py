"""Guards replication/partition/replica_fetcher.py: what is asked of a leader next, and what its answers lead to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from replication.partition.follower_log import LeaderBounds
from replication.partition.partition import EARLIEST, LATEST
from replication.partition.replica_fetcher import Fetcher, FetchSettings
from replication.partition.replication_quota import ReplicationThrottle

TOPIC = b"T" * 16
BACKOFF_MS = FetchSettings().backoff_ms


THROTTLED = {"follower.replication.throttled.replicas": "0:1,1:7"}


class Followings:
    """Notes what is to be done; `finish` ends the oldest of it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []
        self.waiting: list[Callable[[bool], None]] = []
        self.is_opening = False
        self.throttle = ReplicationThrottle("follower", 1, lambda topic: THROTTLED)

    def open(self, partition: Any, opened: Callable[[], None]) -> None:
        if not self.is_opening:
            opened()

    def append(self, partition: Any, records: Any, bounds: LeaderBounds, wall_ms: int, done: Any) -> None:
        self.done.append(("append", (partition.index, bytes(records), bounds)))
        partition.log.log_end_offset += len(records)
        self.waiting.append(done)

    def truncate(self, partition: Any, epoch: int, end_offset: int, done: Any) -> None:
        self.done.append(("truncate", (partition.index, epoch, end_offset)))
        partition.log.log_end_offset = end_offset
        self.waiting.append(done)

    def cut(self, partition: Any, offset: int, done: Any) -> None:
        self.done.append(("cut", (partition.index, offset)))
        partition.log.log_end_offset = offset
        self.waiting.append(done)

    def begin_anew(self, partition: Any, offset: int, done: Any) -> None:
        self.done.append(("begin anew", (partition.index, offset)))
        partition.log.log_end_offset = offset
        self.waiting.append(done)

    def finish(self, *, can_go_on: bool = True) -> None:
        self.waiting.pop(0)(can_go_on)


def partition(index: int = 0, epoch: int = 5, end: int = 10) -> Any:
    """As much of one as the fetcher looks at: a record is a byte."""
    log = SimpleNamespace(log_end_offset=end, latest_epoch=4, log_start_offset=0, name=f"t-{index}", is_open=True)
    return SimpleNamespace(
        topic="t", topic_id=TOPIC, index=index, leader_epoch=epoch, is_leader=False, is_offline=False, log=log
    )


class Rig:
    """One fetcher; time passes only here."""

    def __init__(self) -> None:
        self.following = Followings()
        followings: Any = self.following
        self.fetcher = Fetcher(2, 1, lambda: 77, followings, FetchSettings())
        self.now_ms = 1000

    def ask(self) -> Any:
        return self.fetcher.next_request(self.now_ms)

    def asked(self) -> dict[int, tuple[int, int, int]]:
        """The partitions of the next request: leader epoch, offset, epoch of the last record."""
        request = self.ask()
        assert isinstance(request, FetchRequest), request
        self.request = request
        return {
            one.partition: (one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch)
            for topic in request.topics
            for one in topic.partitions
        }

    def answer(self, *partitions: PartitionData, code: ErrorCode = ErrorCode.NONE, session_id: int = 9) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))] if partitions else []
        response = FetchResponse(error_code=code, session_id=session_id, responses=topics)
        self.fetcher.received(response, self.now_ms, 0)


def data(index: int = 0, records: bytes = b"", code: ErrorCode = ErrorCode.NONE, **more: Any) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=8, log_start_offset=0, records=records, **more
    )


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_request_names_all_and_later_ones_what_moved(rig: Rig) -> None:
    """Rule 2, M5: an incremental session, in which what is there is waited for."""
    for index in (0, 1):
        rig.fetcher.follow(partition(index))
    assert rig.asked() == {0: (5, 10, 4), 1: (5, 10, 4)}
    assert (rig.request.session_id, rig.request.session_epoch) == (0, 0)
    assert rig.request.replica_state is not None
    assert (rig.request.replica_state.replica_id, rig.request.replica_state.replica_epoch) == (1, 77)
    rig.answer(data(1, b"abc"))
    rig.following.finish()
    assert rig.asked() == {1: (5, 13, 4)}
    assert (rig.request.session_id, rig.request.session_epoch) == (9, 1)
    rig.answer()
    assert rig.asked() == {}, "nothing has moved: an empty request waits at the leader"
    assert rig.request.session_epoch == 2


def test_the_next_request_leaves_when_all_is_written(rig: Rig) -> None:
    """Rule 1: it is this replica's word that it has what lies before."""
    for index in (0, 1):
        rig.fetcher.follow(partition(index))
    rig.asked()
    rig.answer(data(0, b"a"), data(1, b"b"))
    assert rig.ask() is None
    rig.following.finish()
    assert rig.ask() is None
    rig.following.finish()
    assert rig.asked() == {0: (5, 11, 4), 1: (5, 11, 4)}


def test_where_the_logs_part_this_one_is_cut(rig: Rig) -> None:
    """Rule 4."""
    rig.fetcher.follow(partition())
    rig.asked()
    rig.answer(data(diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=7)))
    assert rig.following.done == [("truncate", (0, 3, 7))]
    rig.following.finish()
    assert rig.asked() == {0: (5, 7, 4)}


def offset_of(rig: Rig, timestamp: int, offset: int, code: ErrorCode = ErrorCode.NONE) -> None:
    """The leader is asked for one end of its log, and answers."""
    request = rig.ask()
    assert isinstance(request, ListOffsetsRequest)
    assert (request.replica_id, request.topics[0].partitions[0].timestamp) == (1, timestamp)
    found = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])
    rig.fetcher.received(answer, rig.now_ms, 0)


def out_of_range(rig: Rig) -> None:
    rig.fetcher.follow(partition())
    rig.asked()
    rig.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))


def test_who_asks_for_what_is_gone_begins_where_the_leader_begins(rig: Rig) -> None:
    """Rule 5: the leader is asked where that is."""
    out_of_range(rig)
    offset_of(rig, EARLIEST, 50)
    assert rig.following.done == [("begin anew", (0, 50))]
    rig.following.finish()
    assert rig.asked() == {0: (5, 50, 4)}


def test_who_asks_for_what_is_not_there_yet_is_cut_where_the_leader_ends(rig: Rig) -> None:
    """Rule 5: an unclean leader may end before this log, and know no epoch of it."""
    out_of_range(rig)
    offset_of(rig, EARLIEST, 0)
    offset_of(rig, LATEST, 6)
    assert rig.following.done == [("cut", (0, 6))]
    rig.following.finish()
    assert rig.asked() == {0: (5, 6, 4)}


def test_a_leader_that_has_it_after_all_is_asked_again_a_little_later(rig: Rig) -> None:
    """Rule 5: not in a loop without a pause."""
    out_of_range(rig)
    offset_of(rig, EARLIEST, 0)
    offset_of(rig, LATEST, 12)
    assert rig.following.done == []
    assert rig.ask() is None
    rig.now_ms += 20
    assert rig.asked() == {0: (5, 10, 4)}


def test_a_leader_that_cannot_say_where_it_begins_is_left_alone_for_a_while(rig: Rig) -> None:
    """Rule 3, in the midst of rule 5; nor is one that does not answer asked in a loop."""
    out_of_range(rig)
    offset_of(rig, EARLIEST, -1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    rig.asked()
    rig.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert isinstance(rig.ask(), ListOffsetsRequest)
    rig.fetcher.received(None, rig.now_ms, 0)
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    offset_of(rig, EARLIEST, 50)


@pytest.mark.parametrize(
    ("code", "pause_ms"), [(ErrorCode.UNKNOWN_LEADER_EPOCH, 20), (ErrorCode.KAFKA_STORAGE_ERROR, BACKOFF_MS)]
)
def test_a_partition_that_cannot_be_fetched_is_left_out_for_a_while(rig: Rig, code: ErrorCode, pause_ms: int) -> None:
    """Rule 3: and taken out of the session, or the leader would answer at once, again and again."""
    for index in (0, 1):
        rig.fetcher.follow(partition(index))
    rig.asked()
    rig.answer(data(0, code=code))
    assert rig.asked() == {}
    assert rig.request.max_wait_ms == min(pause_ms, 500), "rule 6: nor is it left out for longer"
    assert [(one.topic_id, one.partitions) for one in rig.request.forgotten_topics_data] == [(TOPIC, [0])]
    rig.answer()
    assert rig.fetcher.next_deadline_ms == rig.now_ms + pause_ms
    rig.now_ms += pause_ms
    assert rig.asked() == {0: (5, 10, 4)}


def test_nothing_is_due_while_a_request_is_under_way(rig: Rig) -> None:
    """A partition was left out when another one is asked for: who looked at the clock only would look for ever."""
    rig.fetcher.follow(partition(0))
    rig.asked()
    rig.answer(data(0, code=ErrorCode.UNKNOWN_LEADER_EPOCH))
    assert rig.ask() is None
    assert rig.fetcher.next_deadline_ms == rig.now_ms + 20
    rig.fetcher.follow(partition(1))
    rig.asked()
    rig.now_ms += 20
    assert (rig.ask(), rig.fetcher.next_deadline_ms) == (None, None)
    rig.answer()
    assert 0 in rig.asked()


def test_a_throttled_follower_that_is_behind_waits_until_its_bytes_are_paid_for(rig: Rig) -> None:
    """Rule 6: one of another broker does not, and one that is in sync does not."""
    rig.following.throttle.set_rate(100, rig.now_ms)
    for index in (0, 1):
        rig.fetcher.follow(partition(index, end=0))
    rig.asked()
    rig.answer(data(0, b"abcd"), data(1, b"abcd"))
    rig.following.finish()
    rig.following.finish()
    assert rig.asked() == {1: (5, 4, 4)}
    assert rig.request.max_wait_ms == 40
    rig.now_ms += 40
    rig.answer()
    assert rig.asked() == {0: (5, 4, 4)}
    rig.answer(data(0, b"abcd"))
    rig.following.finish()
    assert rig.asked() == {0: (5, 8, 4)}, "it has the high watermark"


def test_a_throttled_follower_waits_for_all_that_it_owes(rig: Rig) -> None:
    """Rule 6: it looks every second whether the rate has changed, and asks for nothing while it has not."""
    rig.following.throttle.set_rate(1, rig.now_ms)
    rig.fetcher.follow(partition(0, end=0))
    rig.asked()
    rig.answer(data(0, b"abc"))
    rig.following.finish()
    for _ in range(2):
        assert (rig.ask(), rig.fetcher.next_deadline_ms) == (None, rig.now_ms + 1000)
        rig.now_ms += 1000
    assert rig.ask() is None
    rig.now_ms += 1000
    assert rig.asked() == {0: (5, 3, 4)}


def test_a_leader_that_does_not_answer_is_left_alone_for_a_while(rig: Rig) -> None:
    """Rule 3: and is asked for everything then, for its session may be lost."""
    rig.fetcher.follow(partition())
    rig.asked()
    rig.answer()
    rig.asked()
    rig.fetcher.received(None, rig.now_ms, 0)
    assert rig.ask() is None
    rig.now_ms += BACKOFF_MS
    assert rig.asked() == {0: (5, 10, 4)}
    assert (rig.request.session_id, rig.request.session_epoch) == (9, 0), "which ends the session that was"


def test_a_leader_without_sessions_is_told_all_each_time(rig: Rig) -> None:
    """Rule 2: its cache may be full."""
    for index in (0, 1):
        rig.fetcher.follow(partition(index))
    for _ in range(2):
        assert rig.asked() == {0: (5, 10, 4), 1: (5, 10, 4)}
        assert (rig.request.session_id, rig.request.session_epoch) == (0, 0)
        rig.answer(session_id=0)


def test_a_lost_session_is_begun_anew_at_once(rig: Rig) -> None:
    """Rule 2."""
    rig.fetcher.follow(partition())
    rig.asked()
    rig.answer(data())
    rig.following.finish()
    rig.asked()
    rig.answer(code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    assert rig.asked() == {0: (5, 10, 4)}
    assert rig.request.session_id == 0


def test_an_answer_of_an_earlier_epoch_is_not_taken(rig: Rig) -> None:
    """The partition may have got another leader while the answer was on its way."""
    followed = partition()
    rig.fetcher.follow(followed)
    rig.asked()
    followed.leader_epoch = 6
    rig.fetcher.follow(followed)
    rig.answer(data(0, b"late"))
    assert rig.following.done == []
    assert rig.asked() == {0: (6, 10, 4)}


def test_what_is_not_open_yet_is_not_asked_for(rig: Rig) -> None:
    """Its end is not known before a thread has looked."""
    rig.following.is_opening = True
    rig.fetcher.follow(partition(0))
    rig.following.is_opening = False
    rig.fetcher.follow(partition(1))
    assert rig.asked() == {1: (5, 10, 4)}


def test_a_log_that_was_closed_is_fetched_from_where_it_ended(rig: Rig) -> None:
    """There may be more partitions than files may be open: none is opened only to be asked where it ends."""
    followed = partition()
    rig.fetcher.follow(followed)
    followed.log.is_open = False
    followed.log.log_end_offset = None
    assert rig.asked() == {0: (5, 10, 4)}


def test_a_partition_whose_directory_failed_is_asked_for_no_more(rig: Rig) -> None:
    """Nobody knows where its log ends."""
    followed = partition()
    rig.fetcher.follow(followed)
    rig.fetcher.follow(partition(1))
    rig.asked()
    rig.answer(data(0, b"a"))
    followed.is_offline = True
    rig.following.finish(can_go_on=False)
    assert rig.asked() == {}
    assert rig.request.forgotten_topics_data[0].partitions == [0]


def test_who_is_forgotten_leaves_the_session(rig: Rig) -> None:
    """Another broker leads it, or this one does."""
    first, second = partition(0), partition(1)
    rig.fetcher.follow(first)
    rig.fetcher.follow(second)
    rig.asked()
    rig.answer()
    rig.fetcher.forget(first)
    assert rig.asked() == {}
    assert rig.request.forgotten_topics_data[0].partitions == [0]
    rig.answer()
    rig.fetcher.forget(second)
    assert rig.ask() is None, "there is nothing to fetch"
