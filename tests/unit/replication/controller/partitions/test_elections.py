"""Guards replication/controller/partitions/elections.py and partition_changes.py: several brokers."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import (
    broker_fenced,
    broker_restarted,
    broker_unfenced,
    controlled_shutdown,
    directory_offline,
)
from replication.controller.partitions.partition_changes import TopicRules, build_partition_change
from replication.metadata.image import (
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionState,
    ResourceType,
    TopicImage,
)

TOPIC = b"T" * 16
ELR = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
ENVIRONMENT = DecisionContext(1, {}, DynamicBrokerConfig(BrokerConfig({})), 1, 1, lambda: b"", lambda below: 0)


def partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    *,
    eligible: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
    **more: Any,
) -> PartitionState:
    return PartitionState(replicas, isr, leader, 5, 7, eligible_leaders=eligible, last_known_leaders=last_known, **more)


def cluster(
    state: PartitionState,
    active: set[int],
    *,
    features: dict[str, int] = ELR,
    settings: dict[str, str] | None = None,
    brokers: tuple[int, ...] = (1, 2, 3),
) -> MetadataImage:
    image = MetadataImage("c")
    image.features = features
    image.brokers = {
        i: BrokerImage(
            i, 1, b"I" * 16, (), {}, None, is_fenced=i not in active, is_shutting_down=False, directories=directories(i)
        )
        for i in brokers
    }
    topic = TopicImage("t", TOPIC, {0: state})
    image.topics_by_id[TOPIC] = image.topics_by_name["t"] = topic
    image.configs[ResourceType.TOPIC, "t"] = settings or {}
    return image


def directories(broker_id: int) -> tuple[bytes, ...]:
    return (b"%d" % broker_id * 16, b"x" * 15 + b"%d" % broker_id)


def change(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)


def only(records: list[Any]) -> PartitionChangeRecord | None:
    assert len(records) <= 1
    return records[0][0] if records else None


# ---- one partition ---------------------------------------------------------------------------------------

UNCLEAN = TopicRules(allows_unclean=True)
NO_ELR = TopicRules(has_eligible_leaders=False)


@pytest.mark.parametrize(
    ("state", "isr", "active", "rules", "expected"),
    [
        # In the order of the replicas, not of the ISR.
        (partition((2, 1, 3), (1, 2), NO_LEADER), (1, 2), {1, 2, 3}, TopicRules(), change(leader=2)),
        (partition((2, 1, 3), (1, 2), NO_LEADER), (1, 2), {1, 3}, TopicRules(), change(leader=1)),
        # Who leads goes on while it may.
        (partition((2, 1, 3), (1, 2), 1), (1, 2, 3), {1, 2, 3}, TopicRules(), change(isr=[1, 2, 3])),
        (partition((2, 1, 3), (1, 2), 1), (1, 2), {1, 2, 3}, TopicRules(), None),
        # An eligible one, when nobody of the ISR is there.
        (
            partition((1, 2, 3), (), NO_LEADER, eligible=(2, 3), last_known=(1,)), (), {1, 2, 3}, TopicRules(),
            change(leader=2, isr=[2], eligible_leader_replicas=[3], last_known_elr=[]),
        ),
        # The last known leader, who may have lost records, only when nobody else could ever come.
        (
            partition((1, 2), (), NO_LEADER, last_known=(1,)), (), {1}, TopicRules(),
            change(leader=1, isr=[1], last_known_elr=[], leader_recovery_state=1),
        ),
        (partition((1, 2), (), NO_LEADER, eligible=(2,), last_known=(1,)), (), {1}, TopicRules(), None),
        (partition((1, 2), (2,), NO_LEADER, last_known=(1,)), (2,), {1}, TopicRules(), None),
        (partition((1, 2), (), NO_LEADER, last_known=(1, 2)), (), {1, 2}, TopicRules(), None),
        (partition((1, 2), (), NO_LEADER, last_known=(2,)), (), {1}, TopicRules(), None),
        (partition((1, 2, 3), (1, 2), NO_LEADER), (1, 2), {3}, TopicRules(), None),
        # Anybody, where the topic allows it.
        (
            partition((1, 2, 3), (1, 2), NO_LEADER), (1, 2), {3}, UNCLEAN,
            change(leader=3, isr=[3], leader_recovery_state=1),
        ),
        (
            partition((1, 2, 3), (1, 2), NO_LEADER, leader_recovery_state=1), (1, 2), {3}, UNCLEAN,
            change(leader=3, isr=[3]),
        ),
        # The ISR empties: who was in it is eligible, who led is remembered.
        (
            partition((1, 2), (1,), 1), (), {2}, TopicRules(),
            change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[1], last_known_elr=[1]),
        ),
        # Below min.insync.replicas, and at it again.
        (
            partition((1, 2, 3), (1, 2), 1), (1,), {1, 2, 3}, TopicRules(min_isr=2),
            change(isr=[1], eligible_leader_replicas=[2]),
        ),
        (
            partition((1, 2, 3), (1,), 1, eligible=(2,)), (1, 3), {1, 2, 3}, TopicRules(min_isr=2),
            change(isr=[1, 3], eligible_leader_replicas=[]),
        ),
        # Without eligible leaders the last of an ISR stays in it.
        (partition((1, 2), (1,), 1), (), {2}, NO_ELR, change(leader=NO_LEADER)),
        (partition((1, 2), (1,), NO_LEADER), (1,), {1, 2}, NO_ELR, change(leader=1)),
        (
            partition((1, 2), (1,), 1, eligible=(2,)), (1,), {1, 2}, NO_ELR,
            change(eligible_leader_replicas=[]),
        ),
        # A reassignment ends when all who stay are in sync; a leader who leaves is replaced.
        (
            partition((1, 2, 3), (1, 2), 1, adding=(3,), removing=(1,)), (1, 2, 3), {1, 2, 3}, TopicRules(),
            change(leader=2, isr=[2, 3], replicas=[2, 3], adding_replicas=[], removing_replicas=[]),
        ),
        (
            partition((2, 1, 3), (2, 1), 2, adding=(3,), removing=(1,)), (2, 1, 3), {1, 2, 3}, TopicRules(),
            change(leader=2, isr=[2, 3], replicas=[2, 3], adding_replicas=[], removing_replicas=[]),
        ),
        (
            partition((1, 2, 3), (1,), 1, adding=(3,)), (1, 2, 3), {1, 2, 3}, TopicRules(),
            change(isr=[1, 2, 3], adding_replicas=[]),
        ),
        (
            partition((1, 2, 3), (1,), 1, adding=(3,)), (1, 2), {1, 2, 3}, TopicRules(), change(isr=[1, 2]),
        ),
        (
            partition((1, 2), (1,), 1, removing=(1,)), (1,), {1, 2}, TopicRules(), None,
        ),
        (  # who stays need not be in sync where as many come as go
            partition((1, 2, 4, 3), (1, 3), 1, adding=(4,), removing=(3,)), (1, 3, 4), {1, 3, 4}, TopicRules(),
            change(isr=[1, 4], leader=1, replicas=[1, 2, 4], adding_replicas=[], removing_replicas=[]),
        ),
        (  # but where fewer come than go
            partition((1, 2, 3, 4), (1, 3), 1, removing=(3, 4)), (1, 3), {1, 3}, TopicRules(), None,
        ),
        (  # who was to come and shall go again
            partition((1, 2, 3), (1, 2), 1, adding=(3,), removing=(3,)), (1, 2), {1, 2}, TopicRules(),
            change(leader=1, replicas=[1, 2], adding_replicas=[], removing_replicas=[]),
        ),
        (  # a leader is remembered although somebody is in sync, and forgotten when one is elected
            partition((1, 2), (1, 2), 1), (2,), set(), TopicRules(), change(leader=NO_LEADER, isr=[2], last_known_elr=[1]),
        ),
        (  # who is no replica any more does not lead, although it was the last one
            partition((2, 3), (), NO_LEADER, last_known=(1,)), (), {1, 2}, TopicRules(), None,
        ),
        (  # who is eligible, but elected uncleanly since somebody else is in sync, recovers
            partition((1, 2), (1,), NO_LEADER, eligible=(2,), last_known=(2,)), (1,), {2},
            TopicRules(allows_unclean=True, min_isr=2),
            change(leader=2, isr=[2], eligible_leader_replicas=[], last_known_elr=[], leader_recovery_state=1),
        ),
        (
            partition((1, 2), (2,), NO_LEADER, last_known=(1,)), (2,), {2}, TopicRules(),
            change(leader=2, last_known_elr=[]),
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_a_partition(
    state: PartitionState, isr: tuple[int, ...], active: set[int], rules: TopicRules, expected: object
) -> None:
    """Rules 2 to 5 of partition_changes.py: the records of Kafka's PartitionChangeBuilder."""
    assert build_partition_change(TOPIC, 0, state, isr, active.__contains__, rules) == expected


def test_who_may_have_lost_records_is_no_eligible_leader() -> None:
    """Rule 3: an unclean shutdown."""
    state = partition((1, 2), (1,), 1, eligible=(2,))
    found = build_partition_change(TOPIC, 0, state, (), {2}.__contains__, TopicRules(), unclean_shutdown_id=1)
    assert found == change(leader=2, isr=[2], eligible_leader_replicas=[])


def test_a_leader_that_has_recovered_says_so() -> None:
    """With its next change of the ISR, or without one."""
    state = partition((1, 2), (1,), 1, leader_recovery_state=1)
    assert build_partition_change(TOPIC, 0, state, (1,), {1}.__contains__, TopicRules(), recovery_state=0) == change(
        leader_recovery_state=0
    )


def test_directories_stay_with_their_replicas() -> None:
    """When a reassignment ends."""
    state = partition((1, 2), (1, 2), 2, removing=(1,), directories=(b"1" * 16, b"2" * 16))
    found = build_partition_change(TOPIC, 0, state, (1, 2), {1, 2}.__contains__, TopicRules())
    assert found == change(leader=2, isr=[2], replicas=[2], removing_replicas=[], directories=[b"2" * 16])


# ---- brokers come and go ---------------------------------------------------------------------------------


def test_a_broker_that_comes_leads_what_nobody_leads() -> None:
    """It is still fenced in the image when that is decided; led partitions are left alone."""
    image = cluster(partition((1, 2), (2,), NO_LEADER), active=set())
    assert only(broker_unfenced(image, ENVIRONMENT, 2)) == change(leader=2)
    assert broker_unfenced(image, ENVIRONMENT, 1) == []
    assert broker_unfenced(cluster(partition((1, 2), (1, 2), 1), active={1}), ENVIRONMENT, 2) == []


def test_a_broker_that_goes_leaves_isrs_and_leaderships() -> None:
    """Rule 2; partitions that do not concern it are not touched."""
    image = cluster(partition((2, 1, 3), (2, 1), 2), active={1, 2, 3})
    assert only(broker_fenced(image, ENVIRONMENT, 2)) == change(leader=1, isr=[1])
    assert only(broker_fenced(image, ENVIRONMENT, 1)) == change(isr=[2])
    assert broker_fenced(image, ENVIRONMENT, 3) == []


def test_the_topic_and_the_node_say_how_many_must_be_in_sync() -> None:
    """min.insync.replicas of the topic, else of the node; never more than there are replicas. So for unclean leaders."""
    state = partition((1, 2), (1, 2), 1)
    eligible = change(isr=[1], eligible_leader_replicas=[2])
    assert only(broker_fenced(cluster(state, {1}), ENVIRONMENT, 2)) == change(isr=[1])
    image = cluster(state, {1}, settings={"min.insync.replicas": "5"})
    assert only(broker_fenced(image, ENVIRONMENT, 2)) == eligible
    node = ENVIRONMENT._replace(static_configs={"min.insync.replicas": "2"})
    assert only(broker_fenced(cluster(state, {1}), node, 2)) == eligible
    alone = partition((1, 2), (2,), 2)
    image = cluster(alone, {1, 2}, settings={"unclean.leader.election.enable": "true"})
    assert only(broker_fenced(image, ENVIRONMENT, 2)) == change(leader=1, isr=[1], leader_recovery_state=1)


def test_a_failed_directory_takes_its_partitions_along() -> None:
    """And who has lost its directory leads none of them again."""
    mine, other = directories(1)
    state = partition((1, 2), (1, 2), 1, directories=(mine, directories(2)[0]))
    image = cluster(state, {1, 2})
    assert only(directory_offline(image, ENVIRONMENT, 1, mine)) == change(leader=2, isr=[2])
    assert directory_offline(image, ENVIRONMENT, 1, other) == []
    unclean_shutdown_id = partition((1, 2), (1, 2), NO_LEADER, directories=(b"?" * 16, directories(2)[0]))
    assert only(broker_unfenced(cluster(unclean_shutdown_id, {1, 2}), ENVIRONMENT, 1)) == change(leader=2)


@pytest.mark.parametrize(
    ("state", "was_clean_shutdown", "expected"),
    [
        (partition((1, 2, 3), (1, 2, 3), 1), True, change(isr=[2, 3], leader=2)),
        (partition((1, 2, 3), (1, 3), 1), True, change(isr=[3], leader=NO_LEADER, last_known_elr=[1])),
        (partition((2, 1), (2, 1), 2), True, change(isr=[2])),
        (partition((2, 1), (2,), 2), True, None),
        (partition((2, 3), (2, 3), 2), True, None),
        (
            partition((1, 2), (1,), 1), True,
            change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[1], last_known_elr=[1]),
        ),
        (partition((1, 2), (1,), 1), False, change(leader=NO_LEADER, isr=[], last_known_elr=[1])),
        (partition((1, 2), (), NO_LEADER, eligible=(1,), last_known=(1,)), True, None),
        (
            partition((1, 2), (), NO_LEADER, eligible=(1,), last_known=(1,)), False,
            change(eligible_leader_replicas=[]),
        ),
    ],
)  # fmt: skip
def test_the_old_process_is_taken_out_of_what_others_hold_too(
    state: PartitionState, was_clean_shutdown: bool, expected: object
) -> None:
    """Kafka's handleBrokerShutdown. Broker 1 begins anew, 2 is there, 3 is not."""
    assert (
        only(
            broker_restarted(
                cluster(state, active={1, 2}), ENVIRONMENT, 1, directories(1), was_clean_shutdown=was_clean_shutdown
            )
        )
        == expected
    )


def test_what_our_broker_holds_alone_begins_a_new_epoch_only_after_an_unclean_end() -> None:
    """Naming the same leader again raises the epoch (decision 0013)."""
    image = cluster(partition((1,), (1,), 1), active={1}, brokers=(1,))
    assert broker_restarted(image, ENVIRONMENT, 1, directories(1), was_clean_shutdown=True) == []
    assert broker_restarted(image, ENVIRONMENT, 1, directories(1), was_clean_shutdown=False) == [(change(leader=1), 2)]
    leaderless = cluster(partition((1,), (), NO_LEADER, eligible=(1,)), active=set(), brokers=(1,))
    assert broker_restarted(leaderless, ENVIRONMENT, 1, directories(1), was_clean_shutdown=False) == []


@pytest.mark.parametrize("was_clean_shutdown", [True, False])
def test_what_our_broker_holds_alone_in_a_directory_that_it_does_not_bring_along_has_no_leader(
    was_clean_shutdown: bool,
) -> None:
    """Apache Kafka has it lead nothing at its start, and then what lies in the directories that it has."""
    first, second = directories(1)
    image = cluster(partition((1,), (1,), 1, directories=(second,)), active={1}, brokers=(1,))
    left = change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[1], last_known_elr=[1])
    assert only(broker_restarted(image, ENVIRONMENT, 1, (first,), was_clean_shutdown=was_clean_shutdown)) == left
    unassigned = cluster(partition((1,), (1,), 1, directories=(UNASSIGNED_DIRECTORY,)), active={1}, brokers=(1,))
    assert broker_restarted(unassigned, ENVIRONMENT, 1, (first,), was_clean_shutdown=True) == []


@pytest.mark.parametrize("holder", [1, 2])
def test_what_one_of_several_brokers_holds_alone_waits_for_it_without_a_leader(holder: int) -> None:
    """As in Kafka, also where it is the node that decides: decision 0013 is about a node alone."""
    image = cluster(partition((holder,), (holder,), holder), active={1, 2})
    found = broker_restarted(image, ENVIRONMENT, holder, directories(holder), was_clean_shutdown=True)
    assert only(found) == change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[holder], last_known_elr=[holder])
    assert only(controlled_shutdown(image, ENVIRONMENT, holder)) == only(found)


def test_our_broker_ends_in_peace() -> None:
    """Others lead what they hold too; what it holds alone stays as it is (decision 0013)."""
    image = cluster(partition((1, 2), (1, 2), 1), active={1, 2})
    assert only(controlled_shutdown(image, ENVIRONMENT, 1)) == change(leader=2, isr=[2])
    assert controlled_shutdown(cluster(partition((1,), (1,), 1), active={1}, brokers=(1,)), ENVIRONMENT, 1) == []


def test_records_are_such_as_the_cluster_can_read() -> None:
    """Version 2 came with eligible leader replicas."""
    image = cluster(partition((1,), (1,), 1), active={1}, brokers=(1,), features={"metadata.version": 21})
    assert broker_restarted(image, ENVIRONMENT, 1, directories(1), was_clean_shutdown=False) == [(change(leader=1), 1)]
