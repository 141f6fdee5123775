"""Guards broker/node/disk_full_policy.py."""

from __future__ import annotations

import pytest

from broker.node.disk_full_policy import FullDisks
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import Publisher
from tests.unit.replication.metadata.test_image import A, after, topic

METADATA, DATA = "/metadata", "/data"


class Clients:
    """A listener: what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def turn_away(self, turns_away: bool) -> None:
        self.told.append(turns_away)


@pytest.fixture
def image() -> MetadataImage:
    return after(*topic("a", A))[0]


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.fixture
def publisher(image: MetadataImage) -> Publisher:
    return Publisher(image)


@pytest.fixture
def full_disks(publisher: Publisher, clients: Clients) -> FullDisks:
    return FullDisks(1, METADATA, publisher, [clients])


def leader(publisher: Publisher) -> int:
    return publisher.image.topics_by_id[A].partitions[0].leader


@pytest.mark.parametrize("directory", [METADATA, DATA])
def test_room_is_what_all_directories_have(full_disks: FullDisks, directory: str) -> None:
    """Rule 1: a full metadata log is a reason to be fenced, too."""
    full_disks.changed(directory, has_room=False)
    assert not full_disks.has_room()
    full_disks.changed(directory, has_room=True)
    assert full_disks.has_room()


def test_the_controller_hears_of_each_change_and_hands_over_without_room(full_disks: FullDisks) -> None:
    """Rule 1."""
    heard: list[str] = []
    full_disks.on_change = lambda: heard.append("change")
    full_disks.on_deaf = lambda: heard.append("deaf")
    full_disks.changed(DATA, has_room=False)
    full_disks.changed(METADATA, has_room=False)
    full_disks.changed(METADATA, has_room=True)
    assert heard == ["change", "deaf", "change", "change"]


def test_who_is_fenced_leads_nothing_until_it_is_fenced_no_more(full_disks: FullDisks, publisher: Publisher) -> None:
    """Rule 2."""
    full_disks.stand_aside(is_aside=True)
    assert leader(publisher) == -1
    full_disks.stand_aside(is_aside=False)
    assert leader(publisher) == 1


@pytest.mark.parametrize("comes_first", ["fence", "full"])
def test_clients_are_turned_away_from_who_hears_nothing(
    full_disks: FullDisks, clients: Clients, comes_first: str
) -> None:
    """Rule 3: until it is fenced no more, whenever there is room again; whichever was known first."""
    full_disks.changed(DATA, has_room=False)
    if comes_first == "full":
        full_disks.changed(METADATA, has_room=False)
        assert clients.told == []
        full_disks.stand_aside(is_aside=True)
    else:
        full_disks.stand_aside(is_aside=True)
        assert clients.told == []
        full_disks.changed(METADATA, has_room=False)
    assert clients.told == [True]
    full_disks.changed(METADATA, has_room=True)
    full_disks.changed(DATA, has_room=True)
    assert clients.told == [True]
    full_disks.stand_aside(is_aside=False)
    assert clients.told == [True, False]


def test_who_still_hears_goes_on_answering(full_disks: FullDisks, clients: Clients) -> None:
    """Rule 3: its metadata are those of everybody."""
    full_disks.changed(DATA, has_room=False)
    full_disks.stand_aside(is_aside=True)
    full_disks.stand_aside(is_aside=False)
    assert clients.told == []
