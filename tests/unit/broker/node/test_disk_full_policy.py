"""The policy of a node with a full log directory (broker/node/disk_full_policy.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.node.disk_full_policy import DiskFullPolicy
from replication.metadata.metadata_publisher import MetadataPublisher
from tests.unit.replication.metadata.test_image import A, apply_records, topic

METADATA, DATA = "/metadata", "/data"


@pytest.fixture
def clients() -> Any:
    """A listener that records the calls."""
    rejected: list[bool] = []
    return SimpleNamespace(rejected=rejected, reject_clients=rejected.append)


@pytest.fixture
def publisher() -> MetadataPublisher:
    return MetadataPublisher(apply_records(*topic("a", A))[0])


@pytest.fixture
def policy(publisher: MetadataPublisher, clients: Any) -> DiskFullPolicy:
    return DiskFullPolicy(1, METADATA, publisher, [clients])


def leader(publisher: MetadataPublisher) -> int:
    return publisher.image.topics_by_id[A].partitions[0].leader


@pytest.mark.parametrize("directory", [METADATA, DATA])
def test_a_node_has_space_if_all_directories_have(policy: DiskFullPolicy, directory: str) -> None:
    policy.space_changed(directory, has_space=False)
    assert not policy.has_space()
    policy.space_changed(directory, has_space=True)
    assert policy.has_space()


def test_a_change_sends_a_heartbeat_and_a_full_metadata_log_resigns(policy: DiskFullPolicy) -> None:
    events: list[str] = []
    policy.on_change = lambda: events.append("change")
    policy.on_metadata_log_full = lambda: events.append("resign")
    policy.space_changed(DATA, has_space=False)
    policy.space_changed(METADATA, has_space=False)
    policy.space_changed(METADATA, has_space=True)
    assert events == ["change", "resign", "change", "change"]


def test_a_fenced_broker_leads_nothing_until_it_is_unfenced(
    policy: DiskFullPolicy, publisher: MetadataPublisher
) -> None:
    policy.set_fenced(is_fenced=True)
    assert leader(publisher) == -1
    policy.set_fenced(is_fenced=False)
    assert leader(publisher) == 1


@pytest.mark.parametrize("first", ["fence", "full"])
def test_a_fenced_broker_with_a_full_metadata_log_rejects_clients_until_it_is_unfenced(
    policy: DiskFullPolicy, clients: Any, first: str
) -> None:
    policy.space_changed(DATA, has_space=False)
    if first == "full":
        policy.space_changed(METADATA, has_space=False)
        assert clients.rejected == []
        policy.set_fenced(is_fenced=True)
    else:
        policy.set_fenced(is_fenced=True)
        assert clients.rejected == []
        policy.space_changed(METADATA, has_space=False)
    assert clients.rejected == [True]
    policy.space_changed(METADATA, has_space=True)
    policy.space_changed(DATA, has_space=True)
    assert clients.rejected == [True]
    policy.set_fenced(is_fenced=False)
    assert clients.rejected == [True, False]


def test_a_fenced_broker_with_space_in_the_metadata_log_serves_clients(policy: DiskFullPolicy, clients: Any) -> None:
    policy.space_changed(DATA, has_space=False)
    policy.set_fenced(is_fenced=True)
    policy.set_fenced(is_fenced=False)
    assert clients.rejected == []
