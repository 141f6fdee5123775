"""What coordinators count: commits, deletions, rebalances, loads, times (broker/coordinators/coordinator_metrics.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinators.coordinator_metrics import CoordinatorMetrics
from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.telemetry.exposition import Format
from protocol.messages.groups import OffsetDeleteRequest
from tests.support import group_requests
from tests.support.group_harness import LocalGroupHarness
from tests.support.messages import message

RETENTION_MS, CHECK_MS = 60_000, 1_000
PREFIX = "kafka_server_group_coordinator_metrics_"


@pytest.fixture
def harness() -> LocalGroupHarness:
    settings = GroupSettings(
        initial_rebalance_delay_ms=0,
        offsets_retention_ms=RETENTION_MS,
        offsets_retention_check_interval_ms=CHECK_MS,
    )
    made = LocalGroupHarness(settings, offsets_partitions=1)
    made.create_topic(OFFSETS_TOPIC, 1)
    made.create_topic("t", 4)
    return made


def values(harness: LocalGroupHarness) -> dict[str, float]:
    """The samples about groups, by name and labels."""
    coordinators: Any = SimpleNamespace(
        groups=harness.runtime, transactions=harness.transactions, group_counts=harness.group_counts
    )
    source = CoordinatorMetrics(coordinators, harness.clock.mono_ms)
    lines = "".join(Format("").slices([source])).splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, _, value in found}


def test_commits_deletions_and_expirations_count_offsets(harness: LocalGroupHarness) -> None:
    harness.ask(group_requests.commit_request(7, group="g", count=3), 8)
    delete = message(OffsetDeleteRequest, group_id="g", topics=[{"name": "t", "partitions": [{"partition_index": 0}]}])
    harness.ask(delete, 0)
    found = values(harness)
    assert (found["offset_commit_count"], found["offset_deletion_count"], found["offset_expiration_count"]) == (3, 1, 0)
    assert found["kafka_coordinator_group_groupmetadatamanager_numoffsets"] == 2
    harness.advance(RETENTION_MS + CHECK_MS)
    found = values(harness)
    assert (found["offset_commit_count"], found["offset_deletion_count"], found["offset_expiration_count"]) == (3, 1, 2)
    assert found["kafka_coordinator_group_groupmetadatamanager_numoffsets"] == 0


def test_a_rebalance_counts_when_members_have_their_assignments(harness: LocalGroupHarness) -> None:
    member = harness.ask(group_requests.join_request(), 3).member_id
    assert values(harness)["group_completed_rebalance_count"] == 0
    harness.ask(group_requests.sync_request(member, assignments={member: b"all"}), 3)
    assert values(harness)["group_completed_rebalance_count"] == 1
    assert values(harness)['group_count{protocol="classic"}'] == 1


def test_loading_counts_the_load_and_no_commits(harness: LocalGroupHarness) -> None:
    harness.ask(group_requests.commit_request(7, group="g", count=3), 8)
    before = harness.group_counts.offset_commits
    harness.restart()
    found = values(harness)
    assert found["offset_commit_count"] == before
    assert found['num_partitions{state="active"}'] == 1
    assert found["kafka_coordinator_group_groupmetadatamanager_numoffsets"] == 3
    assert harness.runtime.times.loads == 1


def test_a_commit_that_waits_has_its_time(harness: LocalGroupHarness) -> None:
    harness.logs[0].is_holding = True
    harness.send("a", group_requests.commit_request(7, group="g"), 8)
    harness.advance(300)
    harness.logs[0].release()
    assert harness.take("a") is not None
    assert 250 < values(harness)["event_purgatory_time_ms_p99"] < 600
