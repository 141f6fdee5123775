"""Tests of elections.py and partition_changes.py with several brokers."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from protocol.messages.admin import IncrementalAlterConfigsRequest
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.configs.config_changes import incremental_alter_configs
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import (
    broker_fenced,
    broker_restarted,
    broker_unfenced,
    controlled_shutdown,
    directory_offline,
)
from replication.controller.partitions.partition_changes import TargetReplicas, TopicRules, build_partition_change
from replication.metadata.image import (
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionState,
    ResourceType,
    TopicImage,
)
from tests.support.config_cases import BROKER, SET, resource
from tests.support.config_cases import TOPIC as TOPIC_RESOURCE

TOPIC = b"T" * 16
ELR = {"metadata.version": 30, "eligible.leader.replicas.version": 1}


def context(image: MetadataImage) -> DecisionContext:
    return DecisionContext(image, 1, {}, DynamicBrokerConfig(BrokerConfig({})), 1, 1, lambda: b"", lambda below: 0)


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
        # The leader stays while it can.
        (partition((2, 1, 3), (1, 2), 1), (1, 2, 3), {1, 2, 3}, TopicRules(), change(isr=[1, 2, 3])),
        (partition((2, 1, 3), (1, 2), 1), (1, 2), {1, 2, 3}, TopicRules(), None),
        # An eligible leader replica, if no ISR member is available.
        (
            partition((1, 2, 3), (), NO_LEADER, eligible=(2, 3), last_known=(1,)), (), {1, 2, 3}, TopicRules(),
            change(leader=2, isr=[2], eligible_leader_replicas=[3], last_known_elr=[]),
        ),
        # The last known leader, if it is the only possible one.
        (
            partition((1, 2), (), NO_LEADER, last_known=(1,)), (), {1}, TopicRules(),
            change(leader=1, isr=[1], last_known_elr=[], leader_recovery_state=1),
        ),
        (partition((1, 2), (), NO_LEADER, eligible=(2,), last_known=(1,)), (), {1}, TopicRules(), None),
        (partition((1, 2), (2,), NO_LEADER, last_known=(1,)), (2,), {1}, TopicRules(), None),
        (partition((1, 2), (), NO_LEADER, last_known=(1, 2)), (), {1, 2}, TopicRules(), None),
        (partition((1, 2), (), NO_LEADER, last_known=(2,)), (), {1}, TopicRules(), None),
        (partition((1, 2, 3), (1, 2), NO_LEADER), (1, 2), {3}, TopicRules(), None),
        # Any replica, if the topic allows unclean elections.
        (
            partition((1, 2, 3), (1, 2), NO_LEADER), (1, 2), {3}, UNCLEAN,
            change(leader=3, isr=[3], leader_recovery_state=1),
        ),
        (
            partition((1, 2, 3), (1, 2), NO_LEADER, leader_recovery_state=1), (1, 2), {3}, UNCLEAN,
            change(leader=3, isr=[3]),
        ),
        # The ISR becomes empty: its last member is eligible, the last leader is stored.
        (
            partition((1, 2), (1,), 1), (), {2}, TopicRules(),
            change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[1], last_known_elr=[1]),
        ),
        # Below min.insync.replicas, and again at it.
        (
            partition((1, 2, 3), (1, 2), 1), (1,), {1, 2, 3}, TopicRules(min_isr=2),
            change(isr=[1], eligible_leader_replicas=[2]),
        ),
        (
            partition((1, 2, 3), (1,), 1, eligible=(2,)), (1, 3), {1, 2, 3}, TopicRules(min_isr=2),
            change(isr=[1, 3], eligible_leader_replicas=[]),
        ),
        # Without ELR, the last ISR member stays.
        (partition((1, 2), (1,), 1), (), {2}, NO_ELR, change(leader=NO_LEADER)),
        (partition((1, 2), (1,), NO_LEADER), (1,), {1, 2}, NO_ELR, change(leader=1)),
        (
            partition((1, 2), (1,), 1, eligible=(2,)), (1,), {1, 2}, NO_ELR,
            change(eligible_leader_replicas=[]),
        ),
        # A reassignment completes when the added replicas are in sync; a removed leader is replaced.
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
        (  # remaining replicas need not be in sync if as many are added as removed
            partition((1, 2, 4, 3), (1, 3), 1, adding=(4,), removing=(3,)), (1, 3, 4), {1, 3, 4}, TopicRules(),
            change(isr=[1, 4], leader=1, replicas=[1, 2, 4], adding_replicas=[], removing_replicas=[]),
        ),
        (  # but they must if fewer are added
            partition((1, 2, 3, 4), (1, 3), 1, removing=(3, 4)), (1, 3), {1, 3}, TopicRules(), None,
        ),
        (  # a replica that is added and removed
            partition((1, 2, 3), (1, 2), 1, adding=(3,), removing=(3,)), (1, 2), {1, 2}, TopicRules(),
            change(leader=1, replicas=[1, 2], adding_replicas=[], removing_replicas=[]),
        ),
        (  # the last leader is stored also with a non-empty ISR, and cleared by an election
            partition((1, 2), (1, 2), 1), (2,), set(), TopicRules(), change(leader=NO_LEADER, isr=[2], last_known_elr=[1]),
        ),
        (  # a last known leader that is no longer a replica is not elected
            partition((2, 3), (), NO_LEADER, last_known=(1,)), (), {1, 2}, TopicRules(), None,
        ),
        (  # an eligible replica that is elected uncleanly is in recovery
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
def test_partition_changes_are_those_of_kafka(
    state: PartitionState, isr: tuple[int, ...], active: set[int], rules: TopicRules, expected: object
) -> None:
    """Rules 2 to 5 of partition_changes.py (Kafka: PartitionChangeBuilder)."""
    assert build_partition_change(TOPIC, 0, state, isr, active.__contains__, rules) == expected


@pytest.mark.parametrize(
    ("state", "isr", "target", "expected"),
    [
        (  # removed now
            partition((1, 2, 3), (1, 2, 3), 2), (1, 2, 3), TargetReplicas((1, 2, 3), removing=(2, 3)),
            change(leader=1, isr=[1], replicas=[1]),
        ),
        (  # removed now, with another one that stays and has left the ISR before
            partition((1, 2, 3), (1,), 1, eligible=(2, 3)), (1,), TargetReplicas((1, 2)),
            change(leader=1, replicas=[1, 2], eligible_leader_replicas=[2]),
        ),
        (  # removed by an earlier version, and added again
            partition((1,), (1,), 1, eligible=(2,)), (1,), TargetReplicas((1, 2), adding=(2,)),
            change(replicas=[1, 2], adding_replicas=[2], eligible_leader_replicas=[]),
        ),
    ],
)  # fmt: skip
def test_a_replica_that_a_reassignment_removes_is_no_eligible_leader(
    state: PartitionState, isr: tuple[int, ...], target: TargetReplicas, expected: object
) -> None:
    """It deletes its records: a second reassignment could elect it without them."""
    rules = TopicRules(min_isr=2)
    assert build_partition_change(TOPIC, 0, state, isr, {1, 2, 3}.__contains__, rules, target=target) == expected


def test_a_broker_after_an_unclean_shutdown_is_no_eligible_leader() -> None:
    state = partition((1, 2), (1,), 1, eligible=(2,))
    found = build_partition_change(TOPIC, 0, state, (), {2}.__contains__, TopicRules(), unclean_shutdown_id=1)
    assert found == change(leader=2, isr=[2], eligible_leader_replicas=[])


def test_a_leader_can_report_its_recovery() -> None:
    state = partition((1, 2), (1,), 1, leader_recovery_state=1)
    assert build_partition_change(TOPIC, 0, state, (1,), {1}.__contains__, TopicRules(), recovery_state=0) == change(
        leader_recovery_state=0
    )


def test_a_completed_reassignment_keeps_the_directories() -> None:
    state = partition((1, 2), (1, 2), 2, removing=(1,), directories=(b"1" * 16, b"2" * 16))
    found = build_partition_change(TOPIC, 0, state, (1, 2), {1, 2}.__contains__, TopicRules())
    assert found == change(leader=2, isr=[2], replicas=[2], removing_replicas=[], directories=[b"2" * 16])


# ---- broker changes --------------------------------------------------------------------------------------


def test_an_unfenced_broker_leads_its_leaderless_partitions() -> None:
    """The image still has it fenced."""
    image = cluster(partition((1, 2), (2,), NO_LEADER), active=set())
    assert only(broker_unfenced(context(image), 2)) == change(leader=2)
    assert broker_unfenced(context(image), 1) == []
    assert broker_unfenced(context(cluster(partition((1, 2), (1, 2), 1), active={1})), 2) == []


def test_a_fenced_broker_leaves_isrs_and_leaderships() -> None:
    """Other partitions do not change."""
    image = cluster(partition((2, 1, 3), (2, 1), 2), active={1, 2, 3})
    assert only(broker_fenced(context(image), 2)) == change(leader=1, isr=[1])
    assert only(broker_fenced(context(image), 1)) == change(isr=[2])
    assert broker_fenced(context(image), 3) == []


@pytest.mark.parametrize("kind", [TOPIC_RESOURCE, BROKER])
@pytest.mark.parametrize("min_isr", ["1", "3"])
@pytest.mark.parametrize("candidates", [{"eligible": (2, 3)}, {"last_known": (2,)}])
def test_a_leaderless_partition_keeps_its_candidates_when_min_insync_replicas_changes(
    kind: int, min_isr: str, candidates: dict[str, Any]
) -> None:
    """An operator may lower it while all replicas are down."""
    down = partition((2, 3), (), NO_LEADER, **candidates)
    image = cluster(down, {1}, settings={"min.insync.replicas": "2"})
    name = "t" if kind == TOPIC_RESOURCE else ""
    request = IncrementalAlterConfigsRequest(resources=[resource(kind, name, ("min.insync.replicas", SET, min_isr))])
    records = incremental_alter_configs(context(image), request).records
    image, _ = image.apply([record for record, _ in records], offset=1, epoch=1)
    elected = only(broker_unfenced(context(image), 2))
    assert elected is not None
    assert (elected.leader, elected.isr) == (2, [2])


def test_partitions_with_a_replica_in_sync_lose_their_candidates_when_min_insync_replicas_changes() -> None:
    image = cluster(partition((1, 2, 3), (1,), 1, eligible=(2, 3)), {1})
    request = IncrementalAlterConfigsRequest(
        resources=[resource(TOPIC_RESOURCE, "t", ("min.insync.replicas", SET, "1"))]
    )
    records = incremental_alter_configs(context(image), request).records
    image, _ = image.apply([record for record, _ in records], offset=1, epoch=1)
    assert image.topics_by_id[TOPIC].partitions[0].eligible_leaders == ()


def test_the_rules_of_a_topic_come_from_its_config_and_the_node() -> None:
    """min.insync.replicas, at most the replication factor, and unclean.leader.election.enable."""
    state = partition((1, 2), (1, 2), 1)
    eligible = change(isr=[1], eligible_leader_replicas=[2])
    assert only(broker_fenced(context(cluster(state, {1})), 2)) == change(isr=[1])
    image = cluster(state, {1}, settings={"min.insync.replicas": "5"})
    assert only(broker_fenced(context(image), 2)) == eligible
    node = context(cluster(state, {1}))._replace(static_configs={"min.insync.replicas": "2"})
    assert only(broker_fenced(node, 2)) == eligible
    alone = partition((1, 2), (2,), 2)
    image = cluster(alone, {1, 2}, settings={"unclean.leader.election.enable": "true"})
    assert only(broker_fenced(context(image), 2)) == change(leader=1, isr=[1], leader_recovery_state=1)


def test_a_failed_directory_removes_its_partitions_from_the_broker() -> None:
    """The broker does not lead them again."""
    mine, other = directories(1)
    state = partition((1, 2), (1, 2), 1, directories=(mine, directories(2)[0]))
    image = cluster(state, {1, 2})
    assert only(directory_offline(context(image), 1, mine)) == change(leader=2, isr=[2])
    assert directory_offline(context(image), 1, other) == []
    offline = partition((1, 2), (1, 2), NO_LEADER, directories=(b"?" * 16, directories(2)[0]))
    assert only(broker_unfenced(context(cluster(offline, {1, 2})), 1)) == change(leader=2)


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
def test_a_restarted_broker_leaves_the_isrs_of_replicated_partitions(
    state: PartitionState, was_clean_shutdown: bool, expected: object
) -> None:
    """Kafka's handleBrokerShutdown; broker 1 restarts, 2 is active, 3 is not."""
    assert (
        only(
            broker_restarted(
                context(cluster(state, active={1, 2})), 1, directories(1), was_clean_shutdown=was_clean_shutdown
            )
        )
        == expected
    )


def test_single_replicas_of_a_single_broker_get_a_new_epoch_after_an_unclean_shutdown() -> None:
    """A record with the same leader starts a new epoch (decision 0013)."""
    image = cluster(partition((1,), (1,), 1), active={1}, brokers=(1,))
    assert broker_restarted(context(image), 1, directories(1), was_clean_shutdown=True) == []
    assert broker_restarted(context(image), 1, directories(1), was_clean_shutdown=False) == [(change(leader=1), 2)]
    leaderless = cluster(partition((1,), (), NO_LEADER, eligible=(1,)), active=set(), brokers=(1,))
    assert broker_restarted(context(leaderless), 1, directories(1), was_clean_shutdown=False) == []


@pytest.mark.parametrize("was_clean_shutdown", [True, False])
def test_single_replicas_in_a_missing_directory_lose_their_leader(
    was_clean_shutdown: bool,
) -> None:
    """Apache Kafka removes all leaderships, then elects leaders in the existing directories."""
    first, second = directories(1)
    image = cluster(partition((1,), (1,), 1, directories=(second,)), active={1}, brokers=(1,))
    left = change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[1], last_known_elr=[1])
    assert only(broker_restarted(context(image), 1, (first,), was_clean_shutdown=was_clean_shutdown)) == left
    unassigned = cluster(partition((1,), (1,), 1, directories=(UNASSIGNED_DIRECTORY,)), active={1}, brokers=(1,))
    assert broker_restarted(context(unassigned), 1, (first,), was_clean_shutdown=True) == []


@pytest.mark.parametrize("holder", [1, 2])
def test_single_replicas_of_one_of_several_brokers_lose_their_leader(holder: int) -> None:
    """As in Kafka; decision 0013 covers only a single broker."""
    image = cluster(partition((holder,), (holder,), holder), active={1, 2})
    found = broker_restarted(context(image), holder, directories(holder), was_clean_shutdown=True)
    assert only(found) == change(leader=NO_LEADER, isr=[], eligible_leader_replicas=[holder], last_known_elr=[holder])
    assert only(controlled_shutdown(context(image), holder)) == only(found)


def test_a_controlled_shutdown_keeps_single_replicas_of_a_single_broker() -> None:
    """Decision 0013; replicated partitions get other leaders."""
    image = cluster(partition((1, 2), (1, 2), 1), active={1, 2})
    assert only(controlled_shutdown(context(image), 1)) == change(leader=2, isr=[2])
    assert controlled_shutdown(context(cluster(partition((1,), (1,), 1), active={1}, brokers=(1,))), 1) == []


def test_record_versions_follow_the_metadata_version() -> None:
    """Version 2 came with eligible leader replicas."""
    image = cluster(partition((1,), (1,), 1), active={1}, brokers=(1,), features={"metadata.version": 21})
    assert broker_restarted(context(image), 1, directories(1), was_clean_shutdown=False) == [(change(leader=1), 1)]
