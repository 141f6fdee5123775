"""ClassicGroup and its records, and classic groups under random requests."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.coordinators.classic.classic_group import (
    MAX_GENERATION,
    ClassicGroup,
    Member,
    MemberProtocol,
    State,
    parse_subscription,
)
from broker.coordinators.classic.group_records import group_record, read_group
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.stored_records import encode_record
from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.support import group_requests
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import subscription

NOW = 1_700_000_000_000


def member(member_id: str, *names: str, instance: str | None = None, metadata: bytes = b"") -> Member:
    protocols = tuple(MemberProtocol(name, metadata) for name in names or ("range",))
    return Member(member_id, instance, "client", "/host", 10_000, 10_000, "consumer", protocols)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_topics_are_found_in_a_subscription_of_any_version(version: int) -> None:
    assert parse_subscription(subscription(version, "one", "zw\u00f6lf", user_data=b"data")) == ["one", "zw\u00f6lf"]
    assert parse_subscription(subscription(version, user_data=b"data")) == []


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0", b"\0\0", b"\0\0\0\0\0\1", b"\0\0\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0",
     b"\0\0\0\0\0\1\xff\xff", b"\0\0\0\0\0\1\0\5abc", b"\0\0\0\0\0\1\0\1\xff"],
)  # fmt: skip
def test_an_unreadable_subscription_has_unknown_topics(metadata: bytes) -> None:
    assert parse_subscription(metadata) is None
    group = ClassicGroup("g", NOW)
    group.add(member("a", metadata=metadata), None)
    group.transition_to(State.PREPARING_REBALANCE, NOW)
    group.init_next_generation(NOW)
    assert group.subscribed_topics is None
    assert group.is_subscribed_to("anything")


def test_generations_wrap_to_one() -> None:
    group = ClassicGroup("g", NOW)
    group.add(member("a"), None)
    group.generation = MAX_GENERATION
    group.transition_to(State.PREPARING_REBALANCE, NOW)
    group.init_next_generation(NOW)
    assert group.generation == 1


def test_the_oldest_member_becomes_leader_when_the_leader_leaves() -> None:
    group = ClassicGroup("g", NOW)
    for name in "abc":
        group.add(member(name), None)
    assert group.leader_id == "a"
    group.remove("b")
    group.remove("a")
    assert group.leader_id == "c"
    group.remove("c")
    assert group.leader_id is None


def test_a_group_record_round_trips() -> None:
    group = ClassicGroup("g\u00fc", NOW)
    group.add(member("a", instance="i", metadata=subscription(0, "t")), None)
    group.add(member("b", metadata=subscription(1, "u")), None)
    group.transition_to(State.PREPARING_REBALANCE, NOW)
    group.init_next_generation(NOW + 1)
    _, value = encode_record(group_record(group, {"a": b"A", "b": b"B"}))
    assert value is not None
    back = read_group("g\u00fc", value)
    assert back.state is State.STABLE
    assert (back.generation, back.protocol_type, back.protocol_name) == (1, "consumer", "range")
    assert (back.leader_id, back.current_state_wall_ms, back.static_members) == ("a", NOW + 1, {"i": "a"})
    assert [one.assignment for one in back.members.values()] == [b"A", b"B"]
    assert back.subscribed_topics == frozenset({"t", "u"})


# ---- random requests


def check(harness: LocalGroupHarness) -> None:
    """Check the invariants of all groups."""
    for shard in harness.runtime.shards.values():
        for group in shard.coordinator.classic_groups.values():
            members = group.members
            assert group.awaiting_join == sum(one.waiting_join is not None for one in members.values()), group
            counts: dict[str, int] = {}
            for one in members.values():
                for name in {name for name, _ in one.protocols}:
                    counts[name] = counts.get(name, 0) + 1
            assert counts == group.protocol_counts, group
            assert (group.leader_id in members) if members else group.leader_id is None, group
            statics = {one.instance_id: one.member_id for one in members.values() if one.instance_id is not None}
            assert statics == group.static_members, group
            assert not group.pending_joins.keys() & members.keys(), group
            assert group.pending_syncs <= members.keys(), group
            assert (group.state in {State.EMPTY, State.PREPARING_REBALANCE}) or members, group
            for one in members.values():
                has_deadline = one.deadline is not None and one.deadline.is_pending
                assert has_deadline or one.has_satisfied_heartbeat, (group, one.member_id)
            if group.state in {State.STABLE, State.COMPLETING_REBALANCE}:
                assert all(group.protocol_name in dict(one.protocols) for one in members.values()), group
            for deadline in group.pending_joins.values():
                assert deadline.is_pending


class Actor:
    """A client that sends random requests."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.dice = dice
        self.member_id = ""
        self.generation = -1
        self.instance_id = dice.choice([None, None, f"static-{name}", "shared"])
        self.version = dice.choice([3, 5, 9]) if self.instance_id is None else dice.choice([5, 8, 9])
        self.is_waiting = False

    def request(self) -> tuple[Any, int]:
        dice = self.dice
        kind = dice.choice(["join"] * 4 + ["sync"] * 4 + ["beat", "beat", "leave", "commit"])
        generation = self.generation if dice.random() < 0.95 else dice.randrange(-1, 4)
        if kind == "join":
            names = dice.choice([["range"], ["range", "sticky"], ["sticky", "range"], ["range", "range"]])
            return group_requests.join_request(
                member=self.member_id,
                instance=self.instance_id,
                protocols=[(one, dice.choice([b"", b"x"])) for one in names],
                session_ms=dice.choice([200, 1_000, 3_000]),
                rebalance_ms=dice.choice([100, 1_000, 5_000]),
            ), self.version
        if kind == "sync":
            assignments = {self.member_id: b"own"}
            return group_requests.sync_request(
                self.member_id, "g", generation, assignments, instance=self.instance_id
            ), 3
        if kind == "leave":
            leaving, self.member_id = self.member_id, ""
            return group_requests.leave_request(leaving, instance=self.instance_id), 3
        if kind == "beat":
            return group_requests.heartbeat_request(self.member_id, generation), 3
        return group_requests.commit_request(1, member=self.member_id, generation=generation), 8

    def hear(self, answer: Any) -> None:
        self.is_waiting = False
        error = getattr(answer, "error_code", 0)
        if error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self.member_id = ""
        elif error in {0, ErrorCode.MEMBER_ID_REQUIRED} and hasattr(answer, "generation_id"):
            self.member_id = answer.member_id
            self.generation = answer.generation_id


@pytest.mark.parametrize("seed", [*range(40), 168, 918])  # the last two found something once
def test_random_requests_keep_the_groups_invariants(seed: int) -> None:
    dice = random.Random(seed)
    settings = GroupSettings(
        min_session_timeout_ms=100, initial_rebalance_delay_ms=dice.choice([0, 500]), max_size=dice.choice([3, 100])
    )
    harness = LocalGroupHarness(settings, offsets_partitions=1)
    harness.create_topic(OFFSETS_TOPIC, 1)
    harness.create_topic("t", 1)
    actors = [Actor(name, dice) for name in "abcde"]
    for _ in range(300):
        event = dice.random()
        if event < 0.80:
            actor = dice.choice(actors)
            if not actor.is_waiting:
                actor.is_waiting = True
                harness.send(actor.name, *actor.request())
        elif event < 0.93:
            harness.advance(dice.choice([1, 50, 400, 2_000]))
        elif event < 0.96:
            harness.logs[0].is_holding = not harness.logs[0].is_holding
        elif event < 0.98:
            harness.logs[0].release(dice.choice([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]))
        elif event < 0.985:
            harness.restart()
            for actor in actors:
                actor.is_waiting = False
        else:
            harness.logs[0].refusal = dice.choice([None, ErrorCode.NOT_ENOUGH_REPLICAS])
        _listen(harness, actors)
        check(harness)
    harness.logs[0].refusal = None
    harness.logs[0].is_holding = False
    harness.logs[0].release()
    for _ in range(10):
        harness.advance(100_000)
        check(harness)
    _listen(harness, actors)
    assert [actor.name for actor in actors if actor.is_waiting] == []
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    before = harness.ask(fetch, 8)
    harness.restart()
    assert harness.ask(fetch, 8) == before


def _listen(harness: LocalGroupHarness, actors: list[Actor]) -> None:
    for actor in actors:
        answer = harness.take(actor.name)
        if answer is not None:
            actor.hear(answer)


def test_unused_member_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.coordinators.classic.classic_protocol.MAX_PENDING_JOINS", 3)
    harness = LocalGroupHarness(offsets_partitions=1)
    harness.create_topic(OFFSETS_TOPIC, 1)
    request = group_requests.join_request()
    ids = [harness.ask(request, 9).member_id for _ in range(5)]
    assert list(harness.runtime.shards[0].coordinator.classic_groups["g"].pending_joins) == ids[2:]
    request.member_id = ids[0]
    assert harness.ask(request, 9).error_code == ErrorCode.UNKNOWN_MEMBER_ID
