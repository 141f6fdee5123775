"""Tests of placement.py and assignments.py with several brokers and racks."""

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
ALL_FENCED = "All brokers are currently fenced, or have all their log directories cordoned."


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
    placer = Placer([broker(i) for i in range(1, 6)], random.Random(seed).randrange)
    placements = [placer.place(3) for _ in range(100)]
    assert all(len(set(replicas)) == 3 for replicas in placements)
    assert set(Counter(replicas[0] for replicas in placements).values()) == {20}
    held = Counter(replica for replicas in placements for replica in replicas)
    assert max(held.values()) - min(held.values()) <= 12, f"seed {seed}: {held}"


@pytest.mark.parametrize("seed", range(10))
def test_replicas_of_a_partition_are_in_different_racks(seed: int) -> None:
    """Also with racks of different size."""
    rack = {1: "a", 2: "a", 3: "a", 4: "b", 5: "c", 6: "c"}
    placer = Placer([broker(i, name) for i, name in rack.items()], random.Random(seed).randrange)
    for _ in range(60):
        replicas = placer.place(3)
        assert {rack[replica] for replica in replicas} == {"a", "b", "c"}, f"seed {seed}: {replicas}"


@pytest.mark.parametrize("seed", range(10))
def test_leaders_rotate_over_the_racks(seed: int) -> None:
    """Each broker has its own rack."""
    placer = Placer([broker(1, "a"), broker(2, "b"), broker(3, "c")], random.Random(seed).randrange)
    assert Counter(placer.place(1)[0] for _ in range(30)) == {1: 10, 2: 10, 3: 10}, f"seed {seed}"


def test_single_partition_topics_have_leaders_in_every_rack() -> None:
    """The first rack is random."""
    image, random_ = image_of(broker(1, "a"), broker(2, "b"), broker(3, "c")), random.Random(1)
    leaders = Counter(place_partitions(image, random_.randrange, 3, 1)[0].replicas[0] for _ in range(300))
    assert set(leaders) == {1, 2, 3}
    assert min(leaders.values()) > 60, leaders


def test_racks_are_reused_if_there_are_more_replicas() -> None:
    """Brokers are not."""
    placer = Placer([broker(1, "a"), broker(2, "a"), broker(3, "b")], random.Random(1).randrange)
    for _ in range(20):
        assert sorted(placer.place(3)) == [1, 2, 3]


def test_a_fenced_broker_is_not_leader_and_not_in_the_isr() -> None:
    image = image_of(broker(1), broker(2, fenced=True), broker(3))
    for replicas, isr in place_partitions(image, random.Random(3).randrange, 3, 20):
        assert replicas[0] != 2
        assert replicas[-1] == 2
        assert sorted(isr) == [1, 3]


@pytest.mark.parametrize(
    ("brokers", "factor", "message"),
    [
        ([broker(1), broker(2)], 3, TOO_FEW.format(3, 2)),
        ([broker(1, fenced=True)], 1, ALL_FENCED),
        ([broker(1, fenced=True)], 2, ALL_FENCED),
        ([broker(1, shutting_down=True)], 1, ALL_FENCED),
        ([broker(1)._replace(cordoned_directories=broker(1).directories)], 1, ALL_FENCED),
        ([broker(1), broker(2)._replace(cordoned_directories=broker(2).directories)], 2, TOO_FEW.format(2, 1)),
    ],
)
def test_too_few_brokers_are_rejected(brokers: list[BrokerImage], factor: int, message: str) -> None:
    """Messages are those of Kafka's StripedReplicaPlacer."""
    image = image_of(*brokers)
    with pytest.raises(KafkaError) as error_response:
        place_partitions(image, random.Random(1).randrange, factor, 1)
    assert (error_response.value.code, error_response.value.message) == (ErrorCode.INVALID_REPLICATION_FACTOR, message)


def test_brokers_after_shutdown_and_with_one_cordoned_directory_take_replicas() -> None:
    gone = broker(2, fenced=True, shutting_down=True)
    half = broker(3, directories=2)._replace(cordoned_directories=broker(3).directories)
    assert sorted(Placer([broker(1), gone, half], random.Random(1).randrange).place(3)) == [1, 2, 3]


def test_manual_assignments_have_equal_replication_factors() -> None:
    image = image_of(broker(1), broker(2))
    with pytest.raises(KafkaError, match=r"includes a partition with 1 replica\(s\), but this is not consistent with"):
        manual_assignments(image, [(0, [1, 2]), (1, [2])])


def test_a_manual_assignment_needs_an_active_broker() -> None:
    image = image_of(broker(1, fenced=True), broker(2))
    with pytest.raises(KafkaError, match="for partition 7 are fenced or in controlled shutdown"):
        manual_assignment(image, 7, [1], None)
    assert manual_assignment(image, 7, [1, 2], None).isr == [2]


def test_a_single_log_directory_is_assigned_at_once() -> None:
    """A broker with several directories chooses one later (DirectoryId.UNASSIGNED)."""
    image = image_of(broker(1), broker(2, directories=2))
    image.features = {"metadata.version": 17}
    ((record, _),) = partition_records(image, b"T" * 16, [manual_assignment(image, 0, [2, 1], None)])
    unassigned, metadata_directory = record.directories  # type: ignore[attr-defined]
    assert uuid_text(unassigned) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert metadata_directory == bytes([1, 1]) * 8
    assert record.leader == 2  # type: ignore[attr-defined]
    image.features = {"metadata.version": 16}
    ((record, version),) = partition_records(image, b"T" * 16, [manual_assignment(image, 0, [2, 1], None)])
    assert (record.directories, version) == ([], 0)  # type: ignore[attr-defined]
