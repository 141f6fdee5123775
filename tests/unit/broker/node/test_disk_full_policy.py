"""The policy of a node with a full log directory (broker/node/disk_full_policy.py)."""

from __future__ import annotations

import pytest

from broker.node.disk_full_policy import DiskFullPolicy
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from tests.unit.replication.metadata.test_image import A, after, topic

METADATA, DATA = "/metadata", "/data"


class Clients:
    """A listener: what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def reject_clients(self, is_rejecting: bool) -> None:
        self.told.append(is_rejecting)


@pytest.fixture
def image() -> MetadataImage:
    return after(*topic("a", A))[0]


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.fixture
def publisher(image: MetadataImage) -> MetadataPublisher:
    return MetadataPublisher(image)


@pytest.fixture
def full_disks(publisher: MetadataPublisher, clients: Clients) -> DiskFullPolicy:
    return DiskFullPolicy(1, METADATA, publisher, [clients])


def leader(publisher: MetadataPublisher) -> int:
    return publisher.image.topics_by_id[A].partitions[0].leader


@pytest.mark.parametrize("directory", [METADATA, DATA])
def test_a_node_has_space_if_all_directories_have(full_disks: DiskFullPolicy, directory: str) -> None:
    full_disks.space_changed(directory, has_space=False)
    assert not full_disks.has_space()
    full_disks.space_changed(directory, has_space=True)
    assert full_disks.has_space()


def test_a_change_sends_a_heartbeat_and_a_full_metadata_log_resigns(full_disks: DiskFullPolicy) -> None:
    heard: list[str] = []
    full_disks.on_change = lambda: heard.append("change")
    full_disks.on_metadata_log_full = lambda: heard.append("deaf")
    full_disks.space_changed(DATA, has_space=False)
    full_disks.space_changed(METADATA, has_space=False)
    full_disks.space_changed(METADATA, has_space=True)
    assert heard == ["change", "deaf", "change", "change"]


def test_a_fenced_broker_leads_nothing_until_it_is_unfenced(
    full_disks: DiskFullPolicy, publisher: MetadataPublisher
) -> None:
    full_disks.set_fenced(is_fenced=True)
    assert leader(publisher) == -1
    full_disks.set_fenced(is_fenced=False)
    assert leader(publisher) == 1


@pytest.mark.parametrize("comes_first", ["fence", "full"])
def test_a_fenced_broker_with_a_full_metadata_log_rejects_clients_until_it_is_unfenced(
    full_disks: DiskFullPolicy, clients: Clients, comes_first: str
) -> None:
    full_disks.space_changed(DATA, has_space=False)
    if comes_first == "full":
        full_disks.space_changed(METADATA, has_space=False)
        assert clients.told == []
        full_disks.set_fenced(is_fenced=True)
    else:
        full_disks.set_fenced(is_fenced=True)
        assert clients.told == []
        full_disks.space_changed(METADATA, has_space=False)
    assert clients.told == [True]
    full_disks.space_changed(METADATA, has_space=True)
    full_disks.space_changed(DATA, has_space=True)
    assert clients.told == [True]
    full_disks.set_fenced(is_fenced=False)
    assert clients.told == [True, False]


def test_a_fenced_broker_with_space_in_the_metadata_log_serves_clients(
    full_disks: DiskFullPolicy, clients: Clients
) -> None:
    full_disks.space_changed(DATA, has_space=False)
    full_disks.set_fenced(is_fenced=True)
    full_disks.set_fenced(is_fenced=False)
    assert clients.told == []
