"""The fetch session cache."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from broker.handlers.records.fetch_sessions import EVICTION_MS, FetchContext, FetchSession, FetchSessions
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchRequest
from replication.partition.partition import end_key, state_key
from replication.purgatory import DelayedOperation, Purgatory
from replication.timer_queue import TimerQueue
from tests.support.messages import message
from tests.support.seeds import seed_of

ID = bytes(range(16))


class Parked(DelayedOperation):
    """Counts the calls of `try_complete`."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def try_complete(self) -> bool:
        self.tries += 1
        return False


def fetch_partitions(indexes: Iterable[int], offset: int = 0) -> list[dict[str, int]]:
    return [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 1000} for index in indexes]


def request(
    session_id: int = 0, epoch: int = 0, partitions: dict[str, list[int]] | None = None,
    forget: dict[str, list[int]] | None = None, offset: int = 0,
) -> FetchRequest:  # fmt: skip
    topics = [{"topic": topic, "partitions": fetch_partitions(at, offset)} for topic, at in (partitions or {}).items()]
    forgotten = [{"topic": topic, "partitions": indexes} for topic, indexes in (forget or {}).items()]
    return message(
        FetchRequest, max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=topics,
        forgotten_topics_data=forgotten,
    )  # fmt: skip


def request_by_id() -> FetchRequest:
    topics = [{"topic_id": ID, "partitions": fetch_partitions([0])}]
    return message(FetchRequest, max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics)


@pytest.fixture
def purgatory() -> Purgatory:
    return Purgatory(TimerQueue())


@pytest.fixture
def sessions(purgatory: Purgatory) -> FetchSessions:
    ids = itertools.count(100)
    return FetchSessions(purgatory, lambda: next(ids), slots=3)


def create(sessions: FetchSessions, partitions: int = 1, mono_ms: int = 0, *, follower: bool = False) -> FetchContext:
    made = sessions.open(request(partitions={"t": list(range(partitions))}), 12, mono_ms, is_follower=follower)
    assert isinstance(made, FetchContext)
    return made


def dirty(fetch_context: FetchContext) -> list[tuple[str | None, int]]:
    return [(partition.topic, partition.index) for partition in fetch_context.dirty]


# ---------------------------------------------------------------- epochs


def test_epoch_zero_creates_a_session(sessions: FetchSessions) -> None:
    session = create(sessions, partitions=2)
    assert isinstance(session, FetchSession)
    assert session.session_id == 100
    assert sessions.open(request(100, 1), 12, 0, is_follower=False) is session
    assert sessions.open(request(100, 2), 12, 0, is_follower=False) is session
    assert session.epoch == 3
    assert len(session.partitions) == 2


def test_a_wrong_session_epoch_fails_and_changes_nothing(sessions: FetchSessions) -> None:
    session = create(sessions)
    for epoch in (2, 3, 7, 0x7FFFFFFF):
        answer = sessions.open(request(100, epoch, {"t": [5]}), 12, 0, is_follower=False)
        assert answer == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert list(session.partitions) == [("t", 0)]
    assert sessions.open(request(100, 1), 12, 0, is_follower=False) is session


def test_the_session_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    session = create(sessions)
    assert isinstance(session, FetchSession)
    session.epoch = 0x7FFFFFFF
    assert sessions.open(request(100, 0x7FFFFFFF), 12, 0, is_follower=False) is session
    assert session.epoch == 1


def test_a_full_request_replaces_its_session(sessions: FetchSessions) -> None:
    create(sessions)
    answer = sessions.open(request(100, 0, {"t": [0]}), 12, 0, is_follower=False)
    assert isinstance(answer, FetchSession)
    assert answer.session_id == 101
    assert 100 not in sessions._by_id


def test_used_session_ids_are_not_reused(purgatory: Purgatory) -> None:
    draws = iter([5, 5, 5, 9])
    sessions = FetchSessions(purgatory, lambda: next(draws))
    assert [create(sessions).session_id for _ in range(2)] == [5, 9]


# ---------------------------------------------------------------- dirty partitions


def test_incremental_request_adds_changes_and_forgets(sessions: FetchSessions) -> None:
    session = create(sessions, partitions=3)
    session.dirty.clear()
    change = request(100, 1, {"t": [1], "u": [0]}, forget={"t": [2], "x": [0]}, offset=50)
    sessions.open(change, 12, 0, is_follower=False)
    assert list(session.partitions) == [("t", 0), ("t", 1), ("u", 0)]
    assert dirty(session) == [("t", 1), ("u", 0)]
    assert session.partitions["t", 1].offset == 50
    assert session.partitions["t", 0].offset == 0


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_request_forgets_nothing(sessions: FetchSessions, epoch: int) -> None:
    full = request(0, epoch, {"t": [0, 1]}, forget={"t": [1]})
    context = sessions.open(full, 12, 0, is_follower=False)
    assert isinstance(context, FetchContext)
    assert dirty(context) == [("t", 0), ("t", 1)]


def test_a_change_between_requests_marks_the_partition_dirty(sessions: FetchSessions, purgatory: Purgatory) -> None:
    session = create(sessions, partitions=3)
    session.dirty.clear()
    purgatory.wake(state_key("t", 2))
    purgatory.wake(state_key("t", 0))
    purgatory.wake(state_key("t", 2))
    purgatory.wake(state_key("u", 2))
    assert dirty(session) == [("t", 2), ("t", 0)]


def test_a_sessionless_fetch_watches_only_while_waiting(sessions: FetchSessions, purgatory: Purgatory) -> None:
    fetch_context = sessions.open(request(epoch=-1, partitions={"t": [0, 1]}), 12, 0, is_follower=False)
    assert isinstance(fetch_context, FetchContext)
    assert len(purgatory._watchers) == 0
    fetch_context.watch_all()
    assert len(purgatory._watchers) == 2
    fetch_context.unwatch_all()
    assert len(purgatory._watchers) == 0


def test_a_partition_is_watched_after_its_topic_name_is_known(sessions: FetchSessions, purgatory: Purgatory) -> None:
    session = sessions.open(request_by_id(), 13, 0, is_follower=False)
    assert isinstance(session, FetchSession)
    assert len(purgatory._watchers) == 0
    session.set_topic_name(session.partitions[ID, 0], "t")
    session.dirty.clear()
    purgatory.wake(state_key("t", 0))
    assert dirty(session) == [("t", 0)]


@pytest.mark.pure_python("extends a compiled class")
def test_follower_is_woken_by_the_end_of_the_log_and_only_notes_the_high_watermark(
    sessions: FetchSessions, purgatory: Purgatory
) -> None:
    session = create(sessions, follower=True)
    session.dirty.clear()
    session.waiter = Parked()
    purgatory.park(session.waiter, (), 100)
    purgatory.wake(state_key("t", 0))
    assert purgatory.drain() == 0
    assert dirty(session) == [("t", 0)]
    purgatory.wake(end_key("t", 0))
    assert purgatory.drain() == 1


# ---------------------------------------------------------------- the cache


def test_a_cache_full_of_young_sessions_creates_none(sessions: FetchSessions) -> None:
    for _ in range(3):
        create(sessions)
    refused = create(sessions, partitions=50)
    assert refused.session_id == 0
    assert not refused.is_incremental
    assert list(refused.partitions) != []
    assert len(sessions) == 3


def test_a_session_idle_for_two_minutes_is_evicted(sessions: FetchSessions) -> None:
    for _ in range(3):
        create(sessions)
    sessions.open(request(100, 1), 12, EVICTION_MS, is_follower=False)
    assert create(sessions, mono_ms=EVICTION_MS).session_id == 0
    made = create(sessions, mono_ms=EVICTION_MS + 1)
    assert made.session_id == 103
    assert 101 not in sessions._by_id
    assert 100 in sessions._by_id
    assert len(sessions) == 3


def test_a_larger_session_evicts_an_older_smaller_one(sessions: FetchSessions) -> None:
    for size in (5, 2, 4):
        create(sessions, partitions=size)
    for session_id in (100, 101, 102):  # all in use, none young
        sessions.open(request(session_id, 1), 12, EVICTION_MS, is_follower=False)
    assert create(sessions, partitions=1, mono_ms=EVICTION_MS + 1).session_id == 0
    assert create(sessions, partitions=3, mono_ms=EVICTION_MS + 1).session_id == 103
    assert 101 not in sessions._by_id


@pytest.mark.pure_python("replaces a property of a compiled class")
def test_a_full_cache_is_searched_once_a_second_for_the_consumers_that_it_refuses(
    sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        create(sessions)
    for session_id in (100, 101, 102):
        sessions.open(request(session_id, 1), 12, EVICTION_MS, is_follower=False)
    looks: list[int] = []
    order: property = vars(FetchSession)["eviction_order"]

    def counted(session: FetchSession) -> object:
        looks.append(session.session_id)
        return order.__get__(session)

    monkeypatch.setattr(FetchSession, "eviction_order", property(counted))
    for passed_ms in range(1, 1001):
        assert create(sessions, mono_ms=EVICTION_MS + passed_ms).session_id == 0
    assert len(looks) <= 4
    assert create(sessions, mono_ms=EVICTION_MS + 1000, partitions=2).session_id != 0
    assert create(sessions, mono_ms=EVICTION_MS + 1000, follower=True).session_id != 0


def test_a_follower_evicts_a_young_consumer_but_no_follower(sessions: FetchSessions) -> None:
    create(sessions, partitions=9)
    create(sessions, partitions=1, follower=True)
    create(sessions, partitions=8)
    assert create(sessions, partitions=1, follower=True).session_id == 103
    assert 102 not in sessions._by_id
    assert create(sessions, partitions=1, follower=True).session_id == 104
    assert 100 not in sessions._by_id
    assert create(sessions, partitions=1, follower=True).session_id == 0


def test_no_watches_are_left_after_random_requests(purgatory: Purgatory) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    sessions = FetchSessions(purgatory, lambda: chance.randrange(1, 2**31), slots=5)
    open_sessions: list[FetchSession] = []
    now = 0
    for _ in range(500):
        now += chance.choice((0, 1, EVICTION_MS // 2))
        partitions = {chance.choice("tuv"): chance.sample(range(6), chance.randrange(4))}
        forget = {chance.choice("tuv"): chance.sample(range(6), chance.randrange(4))}
        session = chance.choice(open_sessions) if open_sessions else None
        epoch = chance.choice((0, -1, session.epoch if session else 1, 3))
        made = sessions.open(
            request(session.session_id if session else 0, epoch, partitions, forget), 12, now,
            is_follower=chance.random() < 0.3,
        )  # fmt: skip
        if isinstance(made, FetchSession):
            open_sessions.append(made)
        open_sessions = [session for session in open_sessions if not session.is_closed]
        watched = {
            key
            for session_id in {session.session_id for session in open_sessions}
            for partition in sessions._by_id[session_id].partitions.values()
            for key in partition.watched
        }
        assert len(sessions) <= 5, f"seed {seed}"
        assert len(purgatory._watchers) == len(watched), f"seed {seed}"
    for session in open_sessions:
        sessions.remove(session.session_id)
    assert len(purgatory._watchers) == 0, f"seed {seed}"
