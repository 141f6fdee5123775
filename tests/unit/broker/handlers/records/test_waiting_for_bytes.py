"""Consumers that wait for more than one byte: read_mark.py and delayed_fetch.py, rule 6."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.records import delayed_fetch
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode
from storage.log.log_validator import AppendOrigin
from tests.support.replica_harness import NOW_MS, Answer, ReplicaHarness, batch, fetched, note_looks, offsets
from tests.support.seeds import seed_of

ONE = len(batch())
PLACES = (("alone", 0), ("alone", 1), ("followed", 0))
SEEDS, STEPS = 20, 120


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=2)
    return made


# ---------------------------------------------------------------- reads


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_partitions_are_read_when_they_may_have_enough(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0}, min_bytes=5 * ONE)
    looked = note_looks(harness, monkeypatch)
    for index in (0, 1, 0, 1):
        harness.load("t", index)
        harness.drain_purgatory()
    assert (answer.is_done, looked) == (False, [])
    harness.load("t", 1)
    harness.drain_purgatory()
    assert looked == [0, 1]
    assert [offsets(fetched(answer, 0, index)) for index in (0, 1)] == [[0, 1], [0, 1, 2]]


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_partition_whose_limit_is_reached_is_not_read_again(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.load("t", 0, batches=2)
    answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0}, min_bytes=3 * ONE, partition_max_bytes=2 * ONE)
    looked = note_looks(harness, monkeypatch)
    harness.load("t", 0, batches=9)
    harness.drain_purgatory()
    assert (answer.is_done, looked) == (False, [])
    harness.load("t", 1)
    harness.drain_purgatory()
    assert [offsets(fetched(answer, 0, index)) for index in (0, 1)] == [[0, 1], [0]]


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_many_partitions_are_read_instead_of_compared(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create("many", partitions=50)
    answer = harness.fetch_all({("many", index): 0 for index in range(50)}, min_bytes=51 * ONE)
    looked = note_looks(harness, monkeypatch)
    for index in range(50):
        harness.load("many", index)
        harness.drain_purgatory()
    assert looked == list(range(33))
    harness.load("many", 0)
    harness.drain_purgatory()
    assert sum(len(fetched(answer, 0, index).records) for index in range(50)) == 51 * ONE


def test_bytes_above_the_high_watermark_count_when_they_are_committed(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r", batches=3)
    answer = harness.fetch("r", min_bytes=4 * ONE)
    harness.load("r")
    for end in (3, 4):
        harness.drain_purgatory()
        assert not answer.is_done
        harness.fetch("r", offset=end, replica=2)
    harness.drain_purgatory()
    assert offsets(fetched(answer)) == [0, 1, 2, 3]


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_records_withheld_at_the_file_limit_count_when_they_can_be_read(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.load("t", 0)
    harness.load("t", 1, batches=3)
    with monkeypatch.context() as limit:
        limit.setattr(harness.replicas, "at_file_limit", lambda *_: True)
        answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0}, min_bytes=4 * ONE)
    assert not answer.is_done
    harness.load("t", 1)
    harness.drain_purgatory()
    assert [offsets(fetched(answer, 0, index)) for index in (0, 1)] == [[0], [0, 1, 2, 3]]


# ---------------------------------------------------------------- other changes


def change_leader(harness: ReplicaHarness) -> None:
    harness.change("r", leader=2)


def delete_topic(harness: ReplicaHarness) -> None:
    harness.delete("r")


def delete_records(harness: ReplicaHarness) -> None:
    harness.partition("r").delete_records(1, NOW_MS)
    harness.load("r")


def fail_directory(harness: ReplicaHarness) -> None:
    (directory,) = harness.log_manager.directories
    harness.replicas.directory_failed(directory, OSError("broken"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (change_leader, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (delete_topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (delete_records, ErrorCode.OFFSET_OUT_OF_RANGE),
        (fail_directory, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_what_makes_a_read_fail_ends_the_wait(harness: ReplicaHarness, happens: Any, code: ErrorCode) -> None:
    harness.create("r", replicas=(1, 2), isr=(1,))
    harness.load("r", batches=2)
    answer = harness.fetch("r", min_bytes=10**6, version=10)
    harness.drain_purgatory()
    happens(harness)
    harness.drain_purgatory()
    assert fetched(answer).error_code == code


# ---------------------------------------------------------------- beside fetches that read after each wake


@pytest.mark.pure_python("replaces a function of a compiled module")
@pytest.mark.parametrize("engine", ["segments", "commitlog"])
@pytest.mark.parametrize("number", range(SEEDS))
def test_a_wait_ends_when_it_would_with_a_read_after_each_wake(
    tmp_path: Path, number: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = seed_of() + number
    print(f"seed {seed}")
    chance = random.Random(seed)
    harness = ReplicaHarness(tmp_path)
    harness.create("alone", partitions=2, barnabas_storage_engine=engine)
    harness.create("followed", replicas=(1, 2), barnabas_storage_engine=engine)
    waiting: list[tuple[Answer, Answer]] = []
    sequences: dict[Any, int] = {}
    for _ in range(STEPS):
        place = name, index = chance.choice(PLACES)
        step = chance.randrange(5)
        if step <= 1:
            harness.load(name, index, batches=chance.randint(1, 3), size=chance.choice((1, 50, 400)))
        elif step == 2:
            offset = chance.randint(0, harness.partition("followed").log.log_end_offset)
            harness.fetch("followed", offset=offset, replica=2)
        elif step == 3:
            append_of_transaction(harness, place, sequences)
        else:
            request = any_fetch(harness, chance)
            answer = harness.fetch_all(**request)
            with monkeypatch.context() as patch:
                patch.setattr(delayed_fetch, "mark_of", lambda *_: None)
                waiting.append((answer, harness.fetch_all(**request)))
        if chance.random() < 0.8:
            harness.drain_purgatory()
            waiting = [pair for pair in waiting if not have_ended(*pair)]


def append_of_transaction(harness: ReplicaHarness, place: tuple[str, int], sequences: dict[Any, int]) -> None:
    """A batch of a new transaction of this partition, or the marker of the one that is open there."""
    number = sequences[place] = sequences.get(place, -1) + 1
    producer: dict[str, Any] = {"producer_id": 5 + PLACES.index(place), "producer_epoch": 0}
    if number % 2 == 0:
        records = batch(base_sequence=number // 2, transactional=True, **producer)
        harness.append(*place, records=records, acks=1)
    else:
        marker = end_txn_marker(ControlType.COMMIT, coordinator_epoch=0, timestamp_ms=NOW_MS, **producer)
        harness.append(*place, records=marker, acks=1, origin=AppendOrigin.COORDINATOR)


def any_fetch(harness: ReplicaHarness, chance: random.Random) -> dict[str, Any]:
    """Of one partition with limits, or of several without: how limits divide the bytes depends on the order of reads."""
    ends = {place: harness.partition(*place).high_watermark for place in chance.sample(PLACES, chance.randint(1, 3))}
    return {
        "positions": {place: max(0, end - chance.choice((0, 0, 1, 4))) for place, end in ends.items()},
        "isolation": chance.randrange(2),
        "min_bytes": chance.choice((2, ONE, 500, 2000)),
        "max_bytes": chance.choice((300, 5000)) if len(ends) == 1 else 2**31 - 1,
        "partition_max_bytes": chance.choice((200, 1000)) if len(ends) == 1 else 1 << 20,
        "version": chance.choice((10, 12, 16)),
    }


def have_ended(answer: Answer, expected: Answer) -> bool:
    """Whether both fetches have ended, with the same response; neither has ended alone."""
    assert (answer.is_done, answer.message) == (expected.is_done, expected.message)
    return answer.is_done
