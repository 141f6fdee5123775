"""Quotas of created, added and deleted partitions (replication/controller/mutation_quotas.py)."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from protocol.messages.cluster import ElectLeadersRequest
from protocol.schema import Message
from replication.controller.controller_client import Client
from replication.controller.mutation_quotas import MutationQuota, MutationQuotas
from replication.metadata.client_quotas import Quotas

CREATION = CreateTopicsRequest(topics=[], timeout_ms=1)
CLIENT = Client("User:a", "10.0.0.1", "c", 7)
QUOTAS: Quotas = {(("user", "a"),): {"controller_mutation_rate": 2.0}}


class Harness:
    """Two partitions per second, and a bucket of 22."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.quotas = MutationQuotas({}, lambda: self.now_ms)

    def quota(self, client: Client = CLIENT, request: Message = CREATION) -> MutationQuota:
        quota = self.quotas.find(QUOTAS, request, client)
        assert quota is not None
        return quota


def test_a_strict_client_is_refused_while_the_bucket_is_overdrawn() -> None:
    harness = Harness()
    quota = harness.quota()
    quota.charge(22)
    quota.charge(10)  # one topic may overdraw it
    assert quota.throttle() == 0
    with pytest.raises(KafkaError) as refused:
        quota.charge(1)
    assert (refused.value.code, refused.value.message) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)
    assert quota.throttle() == 5000
    harness.now_ms += 4000
    assert quota.throttle() == 1000
    harness.now_ms += 1000
    harness.quota().charge(1)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (CREATION, 5),
        (DeleteTopicsRequest(topics=[], timeout_ms=1), 4),
        (CreatePartitionsRequest(topics=[], timeout_ms=1, validate_only=False), 2),
    ],
    ids=["create", "delete", "add"],
)
def test_a_client_that_does_not_know_the_error_must_wait(request_: Message, version: int) -> None:
    harness = Harness()
    quota = harness.quota(CLIENT._replace(api_version=version), request_)
    quota.charge(32)
    assert quota.throttle() == 5000
    quota.charge(2)
    assert quota.throttle() == 6000
    strict = harness.quota(CLIENT._replace(api_version=version + 1), request_)
    with pytest.raises(KafkaError):
        strict.charge(1)


def test_other_requests_and_clients_have_no_quota() -> None:
    harness = Harness()
    find = harness.quotas.find
    assert find(QUOTAS, ElectLeadersRequest(topic_partitions=None, timeout_ms=1), CLIENT) is None
    assert find(QUOTAS, CREATION, None) is None
    assert find(QUOTAS, CREATION, CLIENT._replace(principal="User:b")) is None
    assert find({}, CREATION, CLIENT) is None


def test_the_bucket_has_the_configured_windows() -> None:
    harness = Harness()
    static_configs = {"controller.quota.window.num": "3", "controller.quota.window.size.seconds": "2"}
    harness.quotas = MutationQuotas(static_configs, lambda: harness.now_ms)
    quota = harness.quota()
    quota.charge(13)
    with pytest.raises(KafkaError):
        quota.charge(1)
    assert quota.throttle() == 500
