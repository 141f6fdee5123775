"""Guards replication/controller/periodic_tasks.py: what the active controller does by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol.messages import stored_records
from protocol.messages.admin import IncrementalAlterConfigsRequest
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    BrokerState,
)
from replication.controller.periodic_tasks import TaskIntervals
from replication.metadata.image import NO_LEADER
from tests.support.config_cases import SET, TOPIC, resource
from tests.support.controller_harness import NEVER, ControllerWorld
from tests.unit.replication.controller.brokers.test_broker_lifecycle import (
    beat,
    create,
    join,
    registration,
    since,
    state,
)

SIGNS = NEVER._replace(no_op_ms=500)
BALANCE = NEVER._replace(leader_balance_ms=1000)
UNCLEAN = NEVER._replace(unclean_election_ms=1000)


def world_with(path: Path, intervals: TaskIntervals) -> ControllerWorld:
    return ControllerWorld(path, intervals=intervals).start()


def test_a_sign_of_life_is_written_where_another_node_reads_it(tmp_path: Path) -> None:
    """Rule 3: metadata.max.idle.interval.ms; a node alone writes nothing."""
    world = world_with(tmp_path, SIGNS)
    offset = world.log.next_offset
    world.wait(5_000)
    assert since(world, offset) == []
    world.register(registration())
    offset = world.log.next_offset
    for _ in range(3):
        world.wait(500)
    assert since(world, offset) == [stored_records.NoOpRecord()] * 3
    assert world.image.offset == offset + 2, "and who looks at the metadata sees that they moved on"


def test_who_leads_no_longer_does_nothing_by_itself(tmp_path: Path) -> None:
    """The next leader does."""
    world = world_with(tmp_path, SIGNS)
    join(world)
    offset = world.log.next_offset
    world.controller.on_leadership_lost()
    world.wait(5_000)
    assert since(world, offset) == []


def test_who_is_deposed_by_what_it_does_does_nothing_more_by_itself(tmp_path: Path) -> None:
    """What is written down may bring the news that another node leads: its log is not to be written to any more."""
    world = world_with(tmp_path, SIGNS)
    join(world)
    end_with_the_next_append(world)
    offset = world.log.next_offset
    world.wait(500)
    assert since(world, offset) == [stored_records.NoOpRecord()]
    world.wait(5_000)
    assert since(world, offset) == [stored_records.NoOpRecord()]


def end_with_the_next_append(world: ControllerWorld) -> None:
    """The controller hears that another one leads, before its append returns."""
    append = world.log.append

    def last(*given: Any, **named: Any) -> int:
        offset = append(*given, **named)
        world.controller.on_leadership_lost()
        return offset

    world.log.append = last  # type: ignore[method-assign]


def test_leaders_go_back_to_the_first_replica_when_it_is_in_sync_again(tmp_path: Path) -> None:
    """Rule 2: auto.leader.rebalance.enable."""
    world = world_with(tmp_path, BALANCE)
    epoch = join(world)
    topic_id = create(world, [2, 1])
    world.heartbeat(beat(epoch, want_fence=True))
    world.heartbeat(beat(epoch))
    world.wait(1_000)
    assert (state(world, topic_id).leader, state(world, topic_id).isr) == (1, (1,)), "it cannot lead yet"
    come_back(world, topic_id, epoch)
    assert state(world, topic_id).leader == 1
    world.wait(1_000)
    assert (state(world, topic_id).leader, state(world, topic_id).isr) == (2, (1, 2))
    offset = world.log.next_offset
    world.wait(1_000)
    assert since(world, offset) == []


def come_back(world: ControllerWorld, topic_id: bytes, epoch: int) -> None:
    """Broker 1 leads, and has 2 in sync again."""
    now = state(world, topic_id)
    wanted = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        leader_recovery_state=0,
        new_isr_with_epochs=[BrokerState(broker_id=1), BrokerState(broker_id=2, broker_epoch=epoch)],
    )
    topics = [AlterPartitionRequestTopic(topic_id=topic_id, partitions=[wanted])]
    world.ask(AlterPartitionRequest(broker_id=1, broker_epoch=world.broker_epoch, topics=topics))


def leave_without_leader(world: ControllerWorld) -> bytes:
    """A partition of brokers 2 and 1 whose only one in sync, 2, is gone, and its records with it."""
    epoch = join(world)
    topic_id = create(world, [2, 1])
    now = state(world, topic_id)
    wanted = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        leader_recovery_state=0,
        new_isr_with_epochs=[BrokerState(broker_id=2, broker_epoch=epoch)],
    )
    topics = [AlterPartitionRequestTopic(topic_id=topic_id, partitions=[wanted])]
    world.ask(AlterPartitionRequest(broker_id=2, broker_epoch=epoch, topics=topics))
    world.heartbeat(beat(epoch, want_fence=True))
    assert state(world, topic_id).leader == NO_LEADER
    return topic_id


def allow_unclean(world: ControllerWorld) -> None:
    change = ("unclean.leader.election.enable", SET, "true")
    world.ask(IncrementalAlterConfigsRequest(resources=[resource(TOPIC, "t", change)], validate_only=False))


def test_a_topic_that_begins_to_allow_it_has_its_partitions_led_at_once(tmp_path: Path) -> None:
    """Rule 6 of controller.py: by who may have lost records, alone and in recovery."""
    world = world_with(tmp_path, NEVER)
    topic_id = leave_without_leader(world)
    allow_unclean(world)
    now = state(world, topic_id)
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), 1)


def test_who_is_deposed_by_the_new_setting_elects_nobody(tmp_path: Path) -> None:
    """The next leader does, when it looks."""
    world = world_with(tmp_path, NEVER)
    topic_id = leave_without_leader(world)
    end_with_the_next_append(world)
    offset = world.log.next_offset
    change = ("unclean.leader.election.enable", SET, "true")
    request = IncrementalAlterConfigsRequest(resources=[resource(TOPIC, "t", change)], validate_only=False)
    world.controller.submit(request, wall_ms=0, reply=lambda _: None)
    assert [type(record) for record in since(world, offset)] == [stored_records.ConfigRecord]
    assert state(world, topic_id).leader == NO_LEADER


def test_what_nobody_could_lead_is_looked_at_again(tmp_path: Path) -> None:
    """Rule 2: unclean.leader.election.interval.ms. Here nobody was there when the topic began to allow it."""
    world = world_with(tmp_path, UNCLEAN)
    topic_id = leave_without_leader(world)
    world.controller.fence_expired_broker(1, wall_ms=0)
    allow_unclean(world)
    assert state(world, topic_id).leader == NO_LEADER
    world.wait(1_000)
    assert state(world, topic_id).leader == NO_LEADER
    world.heartbeat(world.own_heartbeat())
    assert state(world, topic_id).leader == 1
