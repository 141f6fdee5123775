"""Tests of periodic_tasks.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.messages import stored_records
from protocol.messages.admin import IncrementalAlterConfigsRequest
from replication.controller import periodic_tasks
from replication.controller.periodic_tasks import TaskIntervals
from replication.metadata.image import NO_LEADER
from tests.support.config_cases import SET, TOPIC, resource
from tests.support.controller_harness import NEVER, ControllerHarness, registration

NO_OPS = NEVER._replace(no_op_ms=500)
BALANCE = NEVER._replace(leader_balance_ms=1000)
UNCLEAN = NEVER._replace(unclean_election_ms=1000)


def harness_with(path: Path, intervals: TaskIntervals) -> ControllerHarness:
    return ControllerHarness(path, intervals=intervals).start()


def test_no_op_records_are_written_if_another_node_reads_them(tmp_path: Path) -> None:
    """metadata.max.idle.interval.ms; a single node writes none."""
    harness = harness_with(tmp_path, NO_OPS)
    offset = harness.log.next_offset
    harness.wait(5_000)
    assert harness.records(offset) == []
    harness.ask(registration())
    offset = harness.log.next_offset
    for _ in range(3):
        harness.wait(500)
    assert harness.records(offset) == [stored_records.NoOpRecord()] * 3
    assert harness.image.offset == offset + 2, "the published image advances"


def test_a_deposed_controller_runs_no_tasks(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, NO_OPS)
    harness.activate_broker()
    offset = harness.log.next_offset
    harness.controller.on_leadership_lost()
    harness.wait(5_000)
    assert harness.records(offset) == []


def test_a_task_that_ends_the_leadership_is_the_last(tmp_path: Path) -> None:
    """An append may reveal that another node leads."""
    harness = harness_with(tmp_path, NO_OPS)
    harness.activate_broker()
    lose_leadership_at_next_append(harness)
    offset = harness.log.next_offset
    harness.wait(500)
    assert harness.records(offset) == [stored_records.NoOpRecord()]
    harness.wait(5_000)
    assert harness.records(offset) == [stored_records.NoOpRecord()]


def lose_leadership_at_next_append(harness: ControllerHarness) -> None:
    """End the leadership during the next append."""
    append = harness.log.append

    def last(*given: Any, **named: Any) -> int:
        offset = append(*given, **named)
        harness.controller.on_leadership_lost()
        return offset

    harness.log.append = last  # type: ignore[method-assign]


def test_preferred_replicas_become_leaders_again_when_in_sync(tmp_path: Path) -> None:
    """auto.leader.rebalance.enable."""
    harness = harness_with(tmp_path, BALANCE)
    epoch = harness.activate_broker()
    topic_id = harness.create([2, 1])
    harness.heartbeat(epoch, want_fence=True)
    harness.heartbeat(epoch)
    harness.wait(1_000)
    assert (harness.partition(topic_id).leader, harness.partition(topic_id).isr) == (1, (1,)), "it is not in sync yet"
    harness.alter_partition(topic_id, 1, 1, 2)
    assert harness.partition(topic_id).leader == 1
    harness.wait(1_000)
    assert (harness.partition(topic_id).leader, harness.partition(topic_id).isr) == (2, (1, 2))
    offset = harness.log.next_offset
    harness.wait(1_000)
    assert harness.records(offset) == []


def test_partitions_whose_preferred_replica_is_not_in_sync_take_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is down is the preferred leader of a third of the partitions, which may be many."""
    harness = harness_with(tmp_path, BALANCE)
    epoch = harness.activate_broker()
    topic_id = harness.create([2, 1])
    harness.heartbeat(epoch, want_fence=True)
    assert (harness.partition(topic_id).leader, harness.partition(topic_id).isr) == (1, (1,))
    examined: list[object] = []
    monkeypatch.setattr(periodic_tasks, "leader_change", lambda *given, **_: examined.append(given))
    harness.wait(1_000)
    assert examined == []


def leaderless_partition(harness: ControllerHarness) -> bytes:
    """A partition of brokers 2 and 1; broker 2, alone in the ISR, is fenced."""
    epoch = harness.activate_broker()
    topic_id = harness.create([2, 1])
    harness.alter_partition(topic_id, 2, 2)
    harness.heartbeat(epoch, want_fence=True)
    assert harness.partition(topic_id).leader == NO_LEADER
    return topic_id


ALLOW_UNCLEAN = IncrementalAlterConfigsRequest(
    resources=[resource(TOPIC, "t", ("unclean.leader.election.enable", SET, "true"))]
)


def test_enabling_unclean_elections_elects_leaders_at_once(tmp_path: Path) -> None:
    """Rule 6 of controller.py; the leader is alone in the ISR and in recovery."""
    harness = harness_with(tmp_path, NEVER)
    topic_id = leaderless_partition(harness)
    harness.ask(ALLOW_UNCLEAN)
    now = harness.partition(topic_id)
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), 1)


def test_a_config_change_that_ends_the_leadership_elects_no_leader(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, NEVER)
    topic_id = leaderless_partition(harness)
    lose_leadership_at_next_append(harness)
    offset = harness.log.next_offset
    harness.controller.submit(ALLOW_UNCLEAN)
    assert [type(record) for record in harness.records(offset)] == [stored_records.ConfigRecord]
    assert harness.partition(topic_id).leader == NO_LEADER


def test_unclean_elections_are_retried_periodically(tmp_path: Path) -> None:
    """unclean.leader.election.interval.ms; no replica was available when the config changed."""
    harness = harness_with(tmp_path, UNCLEAN)
    topic_id = leaderless_partition(harness)
    harness.controller.fence_expired_broker(1)
    harness.ask(ALLOW_UNCLEAN)
    assert harness.partition(topic_id).leader == NO_LEADER
    harness.wait(1_000)
    assert harness.partition(topic_id).leader == NO_LEADER
    harness.local_heartbeat()
    assert harness.partition(topic_id).leader == 1
