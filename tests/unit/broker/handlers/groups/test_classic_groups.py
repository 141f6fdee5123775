"""Group APIs: authorization, old versions."""

from __future__ import annotations

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    SyncGroupRequest,
)
from protocol.messages.metadata import FindCoordinatorRequest
from tests.support.deny import Deny
from tests.support.group_harness import LocalGroupHarness
from tests.unit.broker.coordinators.runtime.test_coordinator_runtime import commit_request, join_request


def harness() -> LocalGroupHarness:
    made = LocalGroupHarness()
    made.create_topic(OFFSETS_TOPIC, 5)
    made.create_topic("t", 1)
    made.create_topic("secret", 1)
    return made


# ---- authorization


def test_unauthorized_groups_are_not_answered() -> None:
    made = harness()
    made.ask(commit_request(1), 8)
    made.authorize_by(
        Deny(
            *((operation, Resource.GROUP, "g") for operation in (Operation.READ, Operation.DESCRIBE, Operation.DELETE))
        )
    )
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert made.ask(join_request(), 5).error_code == denied
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
    assert made.ask(sync, 3).error_code == denied
    assert made.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4).error_code == denied
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    assert made.ask(leave, 4).error_code == denied
    assert made.ask(commit_request(1), 8).topics[0].partitions[0].error_code == denied
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert made.ask(fetch, 8).groups[0].error_code == denied
    old = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    assert made.ask(old, 1).topics[0].partitions[0].error_code == denied
    assert made.ask(old, 2).error_code == denied
    assert made.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].error_code == denied
    assert made.ask(DeleteGroupsRequest(groups_names=["g", "other"]), 2).results[-1].error_code == denied
    assert made.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators[0].error_code == denied


def test_only_authorized_groups_are_listed() -> None:
    made = harness()
    made.ask(commit_request(1), 8)
    made.ask(commit_request(1, group="hidden"), 8)
    hidden = (Operation.DESCRIBE, Resource.GROUP, "hidden")
    made.authorize_by(Deny(hidden))
    assert len(made.ask(ListGroupsRequest(), 5).groups) == 2
    made.authorize_by(Deny(hidden, (Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")))
    assert [group.group_id for group in made.ask(ListGroupsRequest(), 5).groups] == ["g"]


def test_unauthorized_topics_fail_in_commits_and_fetches() -> None:
    made = harness()
    request = commit_request(1)
    secret = commit_request(2).topics[0]
    secret.name = "secret"
    request.topics.append(secret)
    made.ask(request, 8)
    made.authorize_by(Deny((Operation.READ, Resource.TOPIC, "secret"), (Operation.DESCRIBE, Resource.TOPIC, "secret")))
    answer = made.ask(request, 8)
    errors = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert errors == {"t": 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert [topic.name for topic in made.ask(everything, 8).groups[0].topics] == ["t"]
    named = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("secret", "t")]
    )
    found = {topic.name: topic.partitions[0] for topic in made.ask(named, 5).topics}
    assert found["t"].committed_offset == 1
    assert (found["secret"].committed_offset, found["secret"].error_code) == (-1, 29)
