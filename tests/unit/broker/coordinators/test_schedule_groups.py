"""The committed offsets of schedule topics (broker/coordinators/schedule_groups.py)."""

from __future__ import annotations

import pytest

from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.groups import DeleteGroupsRequest, OffsetDeleteRequest
from replication.metadata.image import ResourceType
from storage.config.log_config import DELIVER_TO
from tests.support import group_requests
from tests.support.group_harness import LocalGroupHarness
from tests.support.messages import message

_DAY_MS = 86_400_000


def harness_with_topic(settings: GroupSettings | None = None) -> LocalGroupHarness:
    harness = LocalGroupHarness(settings, offsets_partitions=1)
    harness.create_topic(OFFSETS_TOPIC, 1)
    harness.create_topic("t", 1)
    return harness


def deliver(harness: LocalGroupHarness) -> None:
    """Makes a schedule topic of the topic."""
    harness.image.configs = {(ResourceType.TOPIC, "t"): {DELIVER_TO: "target"}}


@pytest.mark.parametrize(("group", "is_kept"), [("schedule-t", True), ("schedule-other", False), ("t", False)])
def test_only_the_offsets_of_an_existing_schedule_topics_group_never_expire(group: str, is_kept: bool) -> None:
    settings = GroupSettings(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=1_000)
    harness = harness_with_topic(settings)
    harness.ask(group_requests.commit_request(7, group=group), 8)
    deliver(harness)
    harness.advance(_DAY_MS)
    assert bool(harness.runtime.shards[0].coordinator.offsets.by_group.get(group)) is is_kept


def commit_error(harness: LocalGroupHarness, offset: int, metadata: str, topic: str = "t") -> int:
    request = group_requests.commit_request(offset, group="schedule-t", topic=topic, metadata=metadata)
    code: int = harness.ask(request, 8).topics[0].partitions[0].error_code
    return code


def deletion_errors(harness: LocalGroupHarness) -> tuple[int, int]:
    """Of the offsets, then of the group."""
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    offsets = harness.ask(message(OffsetDeleteRequest, group_id="schedule-t", topics=topics), 0)
    group = harness.ask(DeleteGroupsRequest(groups_names=["schedule-t"]), 2)
    return offsets.error_code, group.results[0].error_code


@pytest.mark.parametrize("metadata", ["", "x"])
def test_positions_are_neither_set_nor_deleted_while_records_are_delivered(metadata: str) -> None:
    harness = harness_with_topic()
    harness.create_topic("other", 1)
    assert commit_error(harness, 7, metadata) == ErrorCode.NONE
    deliver(harness)
    assert commit_error(harness, 3, metadata) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_error(harness, 3, metadata, "other") == ErrorCode.NONE
    assert deletion_errors(harness) == (ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP)
    harness.image.configs = {}
    assert commit_error(harness, 3, metadata) == ErrorCode.NONE
    assert deletion_errors(harness) == (ErrorCode.NONE, ErrorCode.NONE)
