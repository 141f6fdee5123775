"""Group APIs: authorization, old versions."""

from __future__ import annotations

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.groups import ListGroupsRequest, OffsetFetchRequest
from tests.support.deny import Deny
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import commit_request
from tests.support.messages import message


def harness() -> LocalGroupHarness:
    made = LocalGroupHarness()
    made.create_topic(OFFSETS_TOPIC, 5)
    made.create_topic("t", 1)
    made.create_topic("secret", 1)
    return made


# ---- authorization


def test_only_authorized_groups_are_listed() -> None:
    made = harness()
    made.ask(commit_request(1), 8)
    made.ask(commit_request(1, group="hidden"), 8)
    hidden = (Operation.DESCRIBE, Resource.GROUP, "hidden")
    made.authorize_by(Deny(hidden))
    assert len(made.ask(ListGroupsRequest(), 5).groups) == 2
    made.authorize_by(Deny(hidden, (Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")))
    assert [group.group_id for group in made.ask(ListGroupsRequest(), 5).groups] == ["g"]


def test_old_offset_fetches_of_an_unauthorized_group_fail() -> None:
    made = harness()
    made.ask(commit_request(1), 8)
    made.authorize_by(Deny((Operation.DESCRIBE, Resource.GROUP, "g")))
    request = message(OffsetFetchRequest, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert made.ask(request, 1).topics[0].partitions[0].error_code == denied
    assert made.ask(request, 2).error_code == denied


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
    everything = message(OffsetFetchRequest, groups=[{"group_id": "g", "topics": None}])
    assert [topic.name for topic in made.ask(everything, 8).groups[0].topics] == ["t"]
    topics = [{"name": name, "partition_indexes": [0]} for name in ("secret", "t")]
    named = message(OffsetFetchRequest, group_id="g", topics=topics)
    found = {topic.name: topic.partitions[0] for topic in made.ask(named, 5).topics}
    assert found["t"].committed_offset == 1
    assert (found["secret"].committed_offset, found["secret"].error_code) == (-1, 29)
