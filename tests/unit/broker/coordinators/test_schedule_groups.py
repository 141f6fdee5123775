"""The committed offsets of schedule topics (broker/coordinators/schedule_groups.py)."""

from __future__ import annotations

import pytest

from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from replication.metadata.image import ResourceType
from storage.config.log_config import DELIVER_TO
from tests.support import group_requests
from tests.support.group_harness import LocalGroupHarness

_DAY_MS = 86_400_000


@pytest.mark.parametrize(("group", "is_kept"), [("schedule-t", True), ("schedule-other", False), ("t", False)])
def test_only_the_offsets_of_an_existing_schedule_topics_group_never_expire(group: str, is_kept: bool) -> None:
    settings = GroupSettings(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=1_000)
    harness = LocalGroupHarness(settings, offsets_partitions=1)
    harness.create_topic(OFFSETS_TOPIC, 1)
    harness.create_topic("t", 1)
    harness.image.configs = {(ResourceType.TOPIC, "t"): {DELIVER_TO: "target"}}
    harness.ask(group_requests.commit_request(7, group=group), 8)
    harness.advance(_DAY_MS)
    assert bool(harness.runtime.shards[0].coordinator.offsets.by_group.get(group)) is is_kept
