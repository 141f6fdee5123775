"""Guards replication/controller/elections.py: several brokers."""

from __future__ import annotations

import pytest

from protocol.messages.stored import PartitionChangeRecord
from replication.controller.elections import elect, elect_leaders, restart
from replication.image import NO_LEADER, BrokerImage, MetadataImage, PartitionState, TopicImage

TOPIC = b"T" * 16


def partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    *,
    eligible: tuple[int, ...] = (),
    last_known: tuple[int, ...] = (),
) -> PartitionState:
    return PartitionState(replicas, isr, leader, 5, 7, (), (), (), eligible, last_known)


def cluster(state: PartitionState, active: set[int]) -> MetadataImage:
    image = MetadataImage("c")
    image.features = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
    image.brokers = {
        i: BrokerImage(i, 1, b"I" * 16, (), {}, None, is_fenced=i not in active, is_shutting_down=False, directories=())
        for i in (1, 2, 3)
    }
    topic = TopicImage("t", TOPIC, {0: state})
    image.topics_by_id[TOPIC] = image.topics_by_name["t"] = topic
    return image


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "active", "expected"),
    [
        # In the order of the replicas, not of the ISR.
        (partition((2, 1, 3), (1, 2), NO_LEADER), {1, 2, 3}, change(leader=2)),
        (partition((2, 1, 3), (1, 2), NO_LEADER), {1, 3}, change(leader=1)),
        # An eligible one, when nobody of the ISR is there.
        (
            partition((1, 2, 3), (), NO_LEADER, eligible=(2, 3), last_known=(1,)),
            {1, 2, 3},
            change(leader=2, isr=[2], eligible_leader_replicas=[3], last_known_elr=[]),
        ),
        # The last known leader, who may have lost records, only when nobody else could ever come.
        (
            partition((1, 2), (), NO_LEADER, last_known=(1,)),
            {1},
            change(leader=1, isr=[1], last_known_elr=[], leader_recovery_state=1),
        ),
        (partition((1, 2), (), NO_LEADER, eligible=(2,), last_known=(1,)), {1}, None),
        (partition((1, 2), (2,), NO_LEADER, last_known=(1,)), {1}, None),
        (partition((1, 2), (), NO_LEADER, last_known=(1, 2)), {1, 2}, None),
        (partition((1, 2, 3), (1, 2), NO_LEADER), {3}, None),
    ],
)
def test_who_is_elected(state: PartitionState, active: set[int], expected: PartitionChangeRecord | None) -> None:
    """Rule 1."""
    assert elect(TOPIC, 0, state, active.__contains__) == expected


def test_a_broker_that_comes_leads_what_nobody_leads() -> None:
    """Rule 1: it is still fenced in the image when that is decided; led partitions are left alone."""
    image = cluster(partition((1, 2), (2,), NO_LEADER), active=set())
    assert [record for record, _ in elect_leaders(image, 2)] == [change(leader=2)]
    assert elect_leaders(image, 1) == []
    assert elect_leaders(cluster(partition((1, 2), (1, 2), 1), active={1}), 2) == []


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (partition((1, 2, 3), (1, 2, 3), 1), change(isr=[2, 3], leader=2)),
        (partition((1, 2, 3), (1, 3), 1), change(isr=[3], leader=NO_LEADER)),
        (partition((2, 1), (2, 1), 2), change(isr=[2])),
        (partition((1, 2), (1,), 1), change(leader=NO_LEADER)),
        (partition((2, 1), (2,), 2), None),
        (partition((2, 3), (2, 3), 2), None),
    ],
)
def test_the_old_process_is_taken_out_of_what_others_hold_too(
    state: PartitionState, expected: PartitionChangeRecord | None
) -> None:
    """Rule 3: the last of an ISR stays in it. Broker 1 begins anew, 2 is there, 3 is not."""
    records = [record for record, _ in restart(cluster(state, active={1, 2}), 1, was_clean=True)]
    assert records == ([] if expected is None else [expected])


def test_what_one_broker_holds_alone_begins_a_new_epoch_only_after_an_unclean_end() -> None:
    """Rule 2: naming the same leader again raises the epoch."""
    image = cluster(partition((1,), (1,), 1), active={1})
    assert restart(image, 1, was_clean=True) == []
    assert restart(image, 1, was_clean=False) == [(change(leader=1), 2)]
    leaderless = cluster(partition((1,), (), NO_LEADER, eligible=(1,)), active=set())
    assert restart(leaderless, 1, was_clean=False) == []


def test_records_are_such_as_the_cluster_can_read() -> None:
    """Version 2 came with eligible leader replicas."""
    image = cluster(partition((1,), (1,), 1), active={1})
    image.features = {"metadata.version": 21}
    assert restart(image, 1, was_clean=False) == [(change(leader=1), 1)]
