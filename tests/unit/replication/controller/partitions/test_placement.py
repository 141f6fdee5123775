"""Guards replication/controller/partitions/placement.py and assignments.py: several brokers, several racks."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import uuid_text
from replication.controller.partitions.assignments import (
    manual_assignment,
    manual_assignments,
    partition_records,
    place_partitions,
)
from replication.controller.partitions.placement import Placer
from replication.metadata.image import BrokerImage, MetadataImage

TOO_FEW = (
    "The target replication factor of {} cannot be reached because only {} broker(s) are registered or some brokers have "
    "all their log directories cordoned."
)
NOBODY = "All brokers are currently fenced, or have all their log directories cordoned."


def broker(
    broker_id: int, rack: str | None = None, *, fenced: bool = False, shutting_down: bool = False, directories: int = 1
) -> BrokerImage:
    ids = tuple(bytes([broker_id, n]) * 8 for n in range(1, directories + 1))
    return BrokerImage(broker_id, 1, b"I" * 16, (), {}, rack, fenced, shutting_down, ids)


def image_of(*brokers: BrokerImage) -> MetadataImage:
    image = MetadataImage("c")
    image.brokers = {b.broker_id: b for b in brokers}
    return image


@pytest.mark.parametrize("seed", range(10))
def test_leaders_and_replicas_are_spread_evenly(seed: int) -> None:
    """Rule 1 (seeds.md M1)."""
    placer = Placer([broker(i) for i in range(1, 6)], random.Random(seed).randrange)
    placements = [placer.place(3) for _ in range(100)]
    assert all(len(set(replicas)) == 3 for replicas in placements)
    assert set(Counter(replicas[0] for replicas in placements).values()) == {20}
    held = Counter(replica for replicas in placements for replica in replicas)
    assert max(held.values()) - min(held.values()) <= 12, f"seed {seed}: {held}"


@pytest.mark.parametrize("seed", range(10))
def test_replicas_of_a_partition_stand_in_different_racks(seed: int) -> None:
    """Rule 2, also where racks differ in size."""
    rack = {1: "a", 2: "a", 3: "a", 4: "b", 5: "c", 6: "c"}
    placer = Placer([broker(i, name) for i, name in rack.items()], random.Random(seed).randrange)
    for _ in range(60):
        replicas = placer.place(3)
        assert {rack[replica] for replica in replicas} == {"a", "b", "c"}, f"seed {seed}: {replicas}"


@pytest.mark.parametrize("seed", range(10))
def test_racks_take_turns_in_leading(seed: int) -> None:
    """Rule 1, where every broker has a rack of its own."""
    placer = Placer([broker(1, "a"), broker(2, "b"), broker(3, "c")], random.Random(seed).randrange)
    assert Counter(placer.place(1)[0] for _ in range(30)) == {1: 10, 2: 10, 3: 10}, f"seed {seed}"


def test_topics_of_one_partition_are_led_in_every_rack() -> None:
    """Rule 1: where the first partition begins is drawn."""
    image, dice = image_of(broker(1, "a"), broker(2, "b"), broker(3, "c")), random.Random(1)
    leaders = Counter(place_partitions(image, dice.randrange, 3, 1)[0].replicas[0] for _ in range(300))
    assert set(leaders) == {1, 2, 3}
    assert min(leaders.values()) > 60, leaders


def test_more_replicas_than_racks_are_still_placed() -> None:
    """Rule 2: then racks are used twice, brokers never."""
    placer = Placer([broker(1, "a"), broker(2, "a"), broker(3, "b")], random.Random(1).randrange)
    for _ in range(20):
        assert sorted(placer.place(3)) == [1, 2, 3]


def test_a_fenced_broker_never_leads_and_is_not_in_sync() -> None:
    """Rule 4; an assignment begins with the active ones in its ISR."""
    image = image_of(broker(1), broker(2, fenced=True), broker(3))
    for replicas, isr in place_partitions(image, random.Random(3).randrange, 3, 20):
        assert replicas[0] != 2
        assert replicas[-1] == 2
        assert sorted(isr) == [1, 3]


@pytest.mark.parametrize(
    ("brokers", "factor", "sentence"),
    [
        (
            [broker(1), broker(2)],
            3,
            TOO_FEW.format(3, 2),
        ),
        ([broker(1, fenced=True)], 1, NOBODY),
        ([broker(1, fenced=True)], 2, NOBODY),
        ([broker(1, shutting_down=True)], 1, NOBODY),
        ([broker(1)._replace(cordoned_directories=broker(1).directories)], 1, NOBODY),
        ([broker(1), broker(2)._replace(cordoned_directories=broker(2).directories)], 2, TOO_FEW.format(2, 1)),
    ],
)
def test_too_few_brokers_are_an_error(brokers: list[BrokerImage], factor: int, sentence: str) -> None:
    """Sentences of Kafka's StripedReplicaPlacer."""
    image = image_of(*brokers)
    with pytest.raises(KafkaError) as error_response:
        place_partitions(image, random.Random(1).randrange, factor, 1)
    assert (error_response.value.code, error_response.value.message) == (ErrorCode.INVALID_REPLICATION_FACTOR, sentence)


def test_who_has_left_is_a_fenced_broker_like_any_other() -> None:
    """Rule 4: and one with a directory that is not cordoned takes replicas."""
    gone = broker(2, fenced=True, shutting_down=True)
    half = broker(3, directories=2)._replace(cordoned_directories=broker(3).directories)
    assert sorted(Placer([broker(1), gone, half], random.Random(1).randrange).place(3)) == [1, 2, 3]


def test_partitions_chosen_by_hand_have_equally_many_replicas() -> None:
    """As Kafka's ReplicationControlManager."""
    image = image_of(broker(1), broker(2))
    with pytest.raises(KafkaError, match=r"includes a partition with 1 replica\(s\), but this is not consistent with"):
        manual_assignments(image, [(0, [1, 2]), (1, [2])])


def test_somebody_chosen_by_hand_must_be_active() -> None:
    """A partition needs a first leader."""
    image = image_of(broker(1, fenced=True), broker(2))
    with pytest.raises(KafkaError, match="for partition 7 are fenced or in controlled shutdown"):
        manual_assignment(image, 7, [1], None)
    assert manual_assignment(image, 7, [1, 2], None).isr == [2]


def test_a_broker_with_several_directories_chooses_itself() -> None:
    """DirectoryId.UNASSIGNED stands for "not yet said"; an only directory is named at once."""
    image = image_of(broker(1), broker(2, directories=2))
    image.features = {"metadata.version": 17}
    ((record, _),) = partition_records(image, b"T" * 16, [manual_assignment(image, 0, [2, 1], None)])
    unassigned, named = record.directories  # type: ignore[attr-defined]
    assert uuid_text(unassigned) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert named == bytes([1, 1]) * 8
    assert record.leader == 2  # type: ignore[attr-defined]
    image.features = {"metadata.version": 16}
    ((record, version),) = partition_records(image, b"T" * 16, [manual_assignment(image, 0, [2, 1], None)])
    assert (record.directories, version) == ([], 0)  # type: ignore[attr-defined]
