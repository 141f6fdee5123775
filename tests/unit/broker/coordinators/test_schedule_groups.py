"""The committed offsets of schedule topics (broker/coordinators/schedule_groups.py)."""

from __future__ import annotations

import pytest

from broker.coordinators.group_config import GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
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


def test_only_the_deliverer_commits_positions_in_a_transaction_while_records_are_delivered() -> None:
    harness = harness_with_topic()
    harness.create_topic("other", 1)
    harness.create_topic(TRANSACTIONS_TOPIC, 5)
    deliver(harness)

    def transactional_error(name: str, topic: str = "t") -> int:
        begun = harness.ask(group_requests.init_request(name), 5)
        producer = (begun.producer_id, begun.producer_epoch)
        request = group_requests.txn_commit_request(name, producer, 7, "schedule-t", topic=topic)
        code: int = harness.ask(request, 5).topics[0].partitions[0].error_code
        return code

    assert transactional_error("mine") == ErrorCode.UNKNOWN_MEMBER_ID
    assert transactional_error("barnabas-schedule-t-1") == ErrorCode.UNKNOWN_MEMBER_ID
    assert transactional_error("another", "other") == ErrorCode.NONE
    assert transactional_error("barnabas-schedule-t-0") == ErrorCode.NONE
    harness.image.configs = {}
    assert transactional_error("later") == ErrorCode.NONE
