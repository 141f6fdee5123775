"""The work of heartbeats of consumer groups: consumer_group.py, topic_regexes.py, target_assignment_updater.py."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from broker.coordinators.consumer.consumer_group import ConsumerGroup, ConsumerMember
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from tests.support.executed_instructions import executed_instructions
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import consumer_heartbeat
from tests.support.seeds import seed_of

FEW, MANY = 5, 100
STEPS = 500


def group_of(size: int, subscription: dict[str, Any]) -> LocalGroupHarness:
    """A group whose members have all reached the target assignment."""
    made = LocalGroupHarness(GroupSettings(), offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 1)
    for number in range(size):
        joining = consumer_heartbeat(f"m{number}", 0, owned={}, rebalance_timeout_ms=60_000, **subscription)
        assert made.ask(joining, 1).error_code == 0
        made.advance(1)
    made.advance(6_000)  # the assignment interval
    (shard,) = made.runtime.shards.values()
    group = shard.coordinator.consumer_groups["g"]
    for _ in range(2):
        for member in list(group.members.values()):
            owned = {topic_id: list(partitions) for topic_id, partitions in member.assigned.items()}
            made.ask(consumer_heartbeat(member.member_id, member.epoch, owned=owned), 1)
    assert group.state.value == "Stable"
    return made


def beat(made: LocalGroupHarness) -> None:
    (shard,) = made.runtime.shards.values()
    epoch = shard.coordinator.consumer_groups["g"].members["m3"].epoch
    assert made.ask(consumer_heartbeat("m3", epoch), 1).error_code == 0


@pytest.mark.pure_python("counts the instructions of a compiled module")
@pytest.mark.parametrize(
    "subscription",
    [{"subscribed_topic_names": ["t"]}, {"subscribed_topic_names": None, "subscribed_topic_regex": "t.*"}],
    ids=["names", "regex"],
)
def test_the_work_of_a_heartbeat_does_not_grow_with_the_group(subscription: dict[str, Any]) -> None:
    few, many = group_of(FEW, subscription), group_of(MANY, subscription)
    assert executed_instructions(lambda: beat(many)) == executed_instructions(lambda: beat(few))


def test_members_are_counted_by_regular_expression() -> None:
    seed = seed_of()
    print(f"SEED={seed}")
    rng = random.Random(seed)
    group = ConsumerGroup("g")
    for _ in range(STEPS):
        member_id = f"m{rng.randrange(6)}"
        if rng.randrange(3):
            group.update_member(ConsumerMember(member_id, regex=rng.choice(["", "a.*", "b.*"])))
        else:
            group.remove(member_id)
        assert group.regex_counts == Counter(member.regex for member in group.members.values() if member.regex)
