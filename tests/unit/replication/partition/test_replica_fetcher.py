"""The rules of `ReplicaFetcher`, over a fake follower log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages import common, produce_fetch
from protocol.messages.produce_fetch import FetchRequest, ListOffsetsRequest, PartitionData
from replication.completion import Completion, completed
from replication.partition.follower_log import LeaderOffsets
from replication.partition.list_offsets import EARLIEST, LATEST
from replication.partition.replica_fetcher import FetchSettings, ReplicaFetcher
from replication.partition.replication_quota import ReplicationQuotaManager

TOPIC = b"T" * 16
BACKOFF_MS = FetchSettings().backoff_ms
FIRST_FORGOTTEN = [produce_fetch.FetchTopic(topic_id=TOPIC, partitions=[0])]
THROTTLED = {"follower.replication.throttled.replicas": "0:1,1:7"}


class FakeFollowerLog:
    """Records the calls; `finish` completes the oldest."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        """The calls, and the resulting log end offsets."""
        self.waiting: list[Completion[bool]] = []
        self.is_opening = False
        self.quota = ReplicationQuotaManager("follower", 1, lambda topic: THROTTLED)

    def open(self, partition: Any) -> Completion[bool]:
        return Completion() if self.is_opening else completed(True)

    def append(self, partition: Any, records: Any, leader_offsets: LeaderOffsets, wall_ms: int) -> Completion[bool]:
        return self._start("append", partition, partition.log.log_end_offset + len(records))

    def gather(self) -> None: ...

    def write_gathered(self) -> None: ...

    def truncate_to_epoch(self, partition: Any, epoch: int, end_offset: int) -> Completion[bool]:
        return self._start(f"truncate to epoch {epoch}", partition, end_offset)

    def truncate_to(self, partition: Any, offset: int) -> Completion[bool]:
        return self._start("truncate", partition, offset)

    def truncate_fully_and_start_at(self, partition: Any, offset: int) -> Completion[bool]:
        return self._start("truncate fully", partition, offset)

    def _start(self, what: str, partition: Any, end_offset: int) -> Completion[bool]:
        self.done.append((what, end_offset))
        partition.log.log_end_offset = end_offset
        self.waiting.append(Completion())
        return self.waiting[-1]

    def finish(self, *, can_continue: bool = True) -> None:
        self.waiting.pop(0).complete(can_continue)


def partition(index: int = 0, epoch: int = 5, end: int = 10) -> Any:
    """The attributes of a partition that the fetcher reads; a record is a byte."""
    opened = SimpleNamespace(epochs=SimpleNamespace(latest=4))
    log = SimpleNamespace(log_end_offset=end, log_start_offset=0, name=f"t-{index}", opened=opened)
    return SimpleNamespace(
        topic="t", topic_id=TOPIC, index=index, leader_epoch=epoch, is_leader=False, is_offline=False, log=log
    )


class Rig:
    """One fetcher and its time."""

    def __init__(self) -> None:
        self.follower_log = FakeFollowerLog()
        follower_log: Any = self.follower_log
        self.broker_epoch = 77
        self.fetcher = ReplicaFetcher(2, 1, lambda: self.broker_epoch, follower_log, FetchSettings())
        self.now_ms = 1000

    def add(self, *indexes: int, **attributes: int) -> None:
        for index in indexes:
            self.fetcher.add(partition(index, **attributes))

    def next_request(self) -> Any:
        return self.fetcher.next_request(self.now_ms)

    def fetch_positions(self) -> dict[int, tuple[int, int, int]]:
        """The partitions of the next Fetch: leader epoch, offset, last fetched epoch."""
        request = self.next_request()
        assert isinstance(request, FetchRequest), request
        self.request = request
        return {
            part.partition: (part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch)
            for topic in request.topics
            for part in topic.partitions
        }

    @property
    def session(self) -> tuple[int, int]:
        """Session id and epoch of the last request."""
        return self.request.session_id, self.request.session_epoch

    def fetch(self, *partitions: PartitionData, **response: Any) -> None:
        """Send the next request and receive this response."""
        self.fetch_positions()
        self.respond(*partitions, **response)

    def respond(self, *partitions: PartitionData, code: ErrorCode = ErrorCode.NONE, session_id: int = 9) -> None:
        topics = [produce_fetch.FetchTopic(topic_id=TOPIC, partitions=list(partitions))] if partitions else []
        response = produce_fetch.FetchResponse(error_code=code, session_id=session_id, responses=topics)
        self.fetcher.on_response(response, self.now_ms, 0)


def data(index: int = 0, records: bytes = b"", code: ErrorCode = ErrorCode.NONE, **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=8, log_start_offset=0, records=records, **fields
    )


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_request_names_all_partitions_and_later_ones_the_changed(rig: Rig) -> None:
    rig.add(0, 1)
    assert rig.fetch_positions() == {0: (5, 10, 4), 1: (5, 10, 4)}
    assert rig.session == (0, 0)
    assert rig.request.replica_state == produce_fetch.ReplicaState(replica_id=1, replica_epoch=77)
    rig.respond(data(1, b"abc"))
    rig.follower_log.finish()
    assert rig.fetch_positions() == {1: (5, 13, 4)}
    assert rig.session == (9, 1)
    rig.respond()
    assert rig.fetch_positions() == {}, "no change: an empty request waits at the leader"
    assert rig.request.session_epoch == 2


def test_the_next_request_is_sent_when_all_records_are_written(rig: Rig) -> None:
    rig.add(0, 1)
    rig.fetch(data(0, b"a"), data(1, b"b"))
    assert rig.next_request() is None
    rig.follower_log.finish()
    assert rig.next_request() is None
    rig.follower_log.finish()
    assert rig.fetch_positions() == {0: (5, 11, 4), 1: (5, 11, 4)}


def test_a_diverging_epoch_truncates_the_log(rig: Rig) -> None:
    rig.add(0)
    rig.fetch(data(diverging_epoch=produce_fetch.FetchEpochEndOffset(epoch=3, end_offset=7)))
    assert rig.follower_log.done == [("truncate to epoch 3", 7)]
    rig.follower_log.finish()
    assert rig.fetch_positions() == {0: (5, 7, 4)}


def answer_offset_query(rig: Rig, timestamp: int, offset: int, code: ErrorCode = ErrorCode.NONE) -> None:
    """Expect a ListOffsets request, and respond."""
    request = rig.next_request()
    assert isinstance(request, ListOffsetsRequest)
    assert (request.replica_id, request.topics[0].partitions[0].timestamp) == (1, timestamp)
    found = produce_fetch.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
    response = produce_fetch.ListOffsetsResponse(topics=[common.Topic(name="t", partitions=[found])])
    rig.fetcher.on_response(response, rig.now_ms, 0)


def out_of_range(rig: Rig) -> None:
    rig.add(0)
    rig.fetch(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))


@pytest.mark.parametrize(
    ("answers", "done"),
    [
        ({EARLIEST: 50}, ("truncate fully", 50)),
        ({EARLIEST: 0, LATEST: 6}, ("truncate", 6)),
    ],
    ids=["below the leader's log start it restarts there", "above the leader's log end it is truncated there"],
)
def test_a_log_out_of_range_continues_where_the_leaders_log_does(
    rig: Rig, answers: dict[int, int], done: tuple[str, int]
) -> None:
    out_of_range(rig)
    for timestamp, offset in answers.items():
        answer_offset_query(rig, timestamp, offset)
    assert rig.follower_log.done == [done]
    rig.follower_log.finish()
    assert rig.fetch_positions() == {0: (5, done[1], 4)}


def test_an_offset_that_is_in_range_after_all_is_fetched_again_after_a_pause(rig: Rig) -> None:
    out_of_range(rig)
    answer_offset_query(rig, EARLIEST, 0)
    answer_offset_query(rig, LATEST, 12)
    assert rig.follower_log.done == []
    assert rig.next_request() is None
    rig.now_ms += 20
    assert rig.fetch_positions() == {0: (5, 10, 4)}


def test_a_failed_offset_query_is_retried_after_the_backoff(rig: Rig) -> None:
    out_of_range(rig)
    answer_offset_query(rig, EARLIEST, -1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert rig.next_request() is None
    rig.now_ms += BACKOFF_MS
    rig.fetch(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert isinstance(rig.next_request(), ListOffsetsRequest)
    rig.fetcher.on_response(None, rig.now_ms, 0)
    assert rig.next_request() is None
    rig.now_ms += BACKOFF_MS
    answer_offset_query(rig, EARLIEST, 50)


@pytest.mark.parametrize(
    ("code", "pause_ms"), [(ErrorCode.UNKNOWN_LEADER_EPOCH, 20), (ErrorCode.KAFKA_STORAGE_ERROR, BACKOFF_MS)]
)
def test_a_partition_that_cannot_be_fetched_leaves_the_session_for_a_while(
    rig: Rig, code: ErrorCode, pause_ms: int
) -> None:
    rig.add(0, 1)
    rig.fetch(data(0, code=code))
    assert rig.fetch_positions() == {}
    assert rig.request.max_wait_ms == min(pause_ms, 500), "no longer than the delay"
    assert rig.request.forgotten_topics_data == FIRST_FORGOTTEN
    rig.respond()
    assert rig.fetcher.next_deadline_ms == rig.now_ms + pause_ms
    rig.now_ms += pause_ms
    assert rig.fetch_positions() == {0: (5, 10, 4)}


def test_there_is_no_deadline_while_a_request_is_pending(rig: Rig) -> None:
    rig.add(0)
    rig.fetch(data(0, code=ErrorCode.UNKNOWN_LEADER_EPOCH))
    assert rig.next_request() is None
    assert rig.fetcher.next_deadline_ms == rig.now_ms + 20
    rig.add(1)
    rig.fetch_positions()
    rig.now_ms += 20
    assert rig.next_request() is None
    assert rig.fetcher.next_deadline_ms is None
    rig.respond()
    assert 0 in rig.fetch_positions()


def test_a_throttled_follower_waits_unless_it_is_in_sync(rig: Rig) -> None:
    rig.follower_log.quota.set_rate(100, rig.now_ms)
    rig.add(0, 1, end=0)
    rig.fetch(data(0, b"abcd"), data(1, b"abcd"))
    rig.follower_log.finish()
    rig.follower_log.finish()
    assert rig.fetch_positions() == {1: (5, 4, 4)}
    assert rig.request.max_wait_ms == 40
    rig.now_ms += 40
    rig.respond()
    assert rig.fetch_positions() == {0: (5, 4, 4)}
    rig.respond(data(0, b"abcd"))
    rig.follower_log.finish()
    assert rig.fetch_positions() == {0: (5, 8, 4)}, "it is in sync"


def test_a_throttled_follower_waits_longer_than_one_second_in_steps(rig: Rig) -> None:
    rig.follower_log.quota.set_rate(1, rig.now_ms)
    rig.add(0, end=0)
    rig.fetch(data(0, b"abc"))
    rig.follower_log.finish()
    for _ in range(2):
        assert (rig.next_request(), rig.fetcher.next_deadline_ms) == (None, rig.now_ms + 1000)
        rig.now_ms += 1000
    assert rig.next_request() is None
    rig.now_ms += 1000
    assert rig.fetch_positions() == {0: (5, 3, 4)}


def test_after_a_failed_request_a_new_session_starts_after_the_backoff(rig: Rig) -> None:
    rig.add(0)
    rig.fetch()
    rig.fetch_positions()
    rig.fetcher.on_response(None, rig.now_ms, 0)
    assert rig.next_request() is None
    rig.now_ms += BACKOFF_MS
    assert rig.fetch_positions() == {0: (5, 10, 4)}
    assert rig.session == (9, 0), "closes the old session"


def test_without_a_session_every_request_names_all_partitions(rig: Rig) -> None:
    rig.add(0, 1)
    for _ in range(2):
        assert rig.fetch_positions() == {0: (5, 10, 4), 1: (5, 10, 4)}
        assert rig.session == (0, 0)
        rig.respond(session_id=0)


def test_a_lost_session_is_replaced_at_once(rig: Rig) -> None:
    rig.add(0)
    rig.fetch(data())
    rig.follower_log.finish()
    rig.fetch(code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0)
    assert rig.fetch_positions() == {0: (5, 10, 4)}
    assert rig.request.session_id == 0


def test_all_partitions_are_named_again_under_a_new_broker_epoch(rig: Rig) -> None:
    """An operator unregistered the broker: the leader knows its position only under the earlier registration."""
    rig.add(0, 1)
    rig.fetch()
    assert rig.fetch_positions() == {}
    rig.broker_epoch = 99
    rig.respond()
    assert rig.fetch_positions() == {0: (5, 10, 4), 1: (5, 10, 4)}
    assert rig.session == (9, 0), "closes the old session"
    assert rig.request.replica_state == produce_fetch.ReplicaState(replica_id=1, replica_epoch=99)
    rig.respond()
    assert rig.fetch_positions() == {}


def test_a_response_of_an_earlier_epoch_is_ignored(rig: Rig) -> None:
    fetched = partition()
    rig.fetcher.add(fetched)
    rig.fetch_positions()
    fetched.leader_epoch = 6
    rig.fetcher.add(fetched)
    rig.respond(data(0, b"late"))
    assert rig.follower_log.done == []
    assert rig.fetch_positions() == {0: (6, 10, 4)}


def test_a_log_that_is_being_opened_is_not_fetched(rig: Rig) -> None:
    rig.follower_log.is_opening = True
    rig.add(0)
    rig.follower_log.is_opening = False
    rig.add(1)
    assert rig.fetch_positions() == {1: (5, 10, 4)}


def test_a_closed_log_is_fetched_from_its_last_known_end(rig: Rig) -> None:
    fetched = partition()
    rig.fetcher.add(fetched)
    fetched.log.opened = fetched.log.log_end_offset = None
    assert rig.fetch_positions() == {0: (5, 10, 4)}


def test_a_partition_of_a_failed_directory_leaves_the_session(rig: Rig) -> None:
    fetched = partition()
    rig.fetcher.add(fetched)
    rig.add(1)
    rig.fetch(data(0, b"a"))
    fetched.is_offline = True
    rig.follower_log.finish(can_continue=False)
    assert rig.fetch_positions() == {}
    assert rig.request.forgotten_topics_data == FIRST_FORGOTTEN


def test_a_removed_partition_leaves_the_session(rig: Rig) -> None:
    first, second = partition(0), partition(1)
    rig.fetcher.add(first)
    rig.fetcher.add(second)
    rig.fetch()
    rig.fetcher.remove(first)
    assert rig.fetch_positions() == {}
    assert rig.request.forgotten_topics_data == FIRST_FORGOTTEN
    rig.respond()
    rig.fetcher.remove(second)
    assert rig.next_request() is None, "no partition is left"


def test_a_log_that_another_fetcher_truncated_during_a_request_is_fetched_from_its_new_end(rig: Rig) -> None:
    followed = partition(0)
    rig.fetcher.add(followed)
    assert rig.fetch_positions() == {0: (5, 10, 4)}
    followed.log.log_end_offset = 7
    rig.respond(data())
    assert rig.fetch_positions() == {0: (5, 7, 4)}
