"""The end of a new group's initial delay. `tests/scenarios/groups` checks all that Apache Kafka does alike."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.classic.classic_protocol import MAX_WAIT_FOR_IDS_MS, WAIT_FOR_IDS_MS
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import join_request

VERSION = 9  # of JoinGroup: new members get their ids first


def harness(delay_ms: int = 0) -> LocalGroupHarness:
    made = LocalGroupHarness(GroupSettings(initial_rebalance_delay_ms=delay_ms), offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    return made


def take_id(of: LocalGroupHarness, actor: str) -> str:
    return str(of.ask(join_request(), VERSION, actor).member_id)


def join(of: LocalGroupHarness, actor: str, member_id: str) -> None:
    of.send(actor, join_request(member=member_id), VERSION)


def joined(of: LocalGroupHarness, actor: str, within_ms: int = 0) -> Any:
    return of.take(actor, within_ms)


@pytest.mark.parametrize("delay_ms", [0, 3000])
def test_members_with_ids_get_the_first_generation(delay_ms: int) -> None:
    made = harness(delay_ms)
    ids = {actor: take_id(made, actor) for actor in "abc"}
    join(made, "a", ids["a"])
    made.advance(delay_ms)
    join(made, "b", ids["b"])
    made.advance(delay_ms + MAX_WAIT_FOR_IDS_MS - WAIT_FOR_IDS_MS)
    join(made, "c", ids["c"])
    made.advance(delay_ms + WAIT_FOR_IDS_MS)
    answers = [joined(made, actor) for actor in "abc"]
    assert [answer.generation_id for answer in answers] == [1, 1, 1]
    assert len(answers[0].members) == 3


def test_a_member_alone_does_not_wait() -> None:
    made = harness()
    join(made, "a", take_id(made, "a"))
    assert joined(made, "a").generation_id == 1


def test_an_id_that_is_not_used_delays_a_new_group_for_a_short_time() -> None:
    made = harness()
    take_id(made, "gone")
    join(made, "a", take_id(made, "a"))
    assert joined(made, "a", MAX_WAIT_FOR_IDS_MS - 1) is None
    assert joined(made, "a", 1).generation_id == 1


def test_an_id_that_is_used_later_starts_another_rebalance() -> None:
    made = harness()
    late = take_id(made, "late")
    join(made, "a", take_id(made, "a"))
    first = joined(made, "a", MAX_WAIT_FOR_IDS_MS)
    join(made, "late", late)
    assert joined(made, "late", 1000) is None
    join(made, "a", first.member_id)
    assert joined(made, "late").generation_id == 2
