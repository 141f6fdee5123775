"""ListOffsets and OffsetForLeaderEpoch, on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.security.authorizer import Operation, Resource
from protocol.batch_builder import BatchBuilder
from protocol.codec import decode, encode
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from storage.io.disk import StorageError
from storage.log.log_reader import LogReader
from tests.support.deny import Deny
from tests.support.messages import message
from tests.support.replica_harness import NOW_MS, ReplicaHarness

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOTHING = (0, -1, -1, -1)


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", epoch=3)
    return made


def fill(harness: ReplicaHarness, *timestamps: Any, name: str = "t", **batch: Any) -> None:
    """Append one batch with these timestamps, relative to NOW_MS."""
    builder = BatchBuilder(**batch)
    for timestamp in timestamps:
        builder.append(NOW_MS + timestamp, b"k", b"v")
    assert harness.produce(name, 0, builder.build(), acks=1).message.responses[0].partition_responses[0].error_code == 0


def ask_all(
    harness: ReplicaHarness, requested: Any, version: int = 11, replica: int = -1, isolation: int = 0, epoch: int = -1
) -> Any:
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
                for index, timestamp in partitions
            ],
        }
        for name, partitions in requested
    ]
    request = message(ListOffsetsRequest, replica_id=replica, isolation_level=isolation, topics=topics)
    answer = harness.offsets.list_offsets(harness.context(2, version), request).result()
    decode(ListOffsetsResponse, version, encode(answer, version))
    return [
        [(part.error_code, part.timestamp, part.offset, part.leader_epoch) for part in topic.partitions]
        for topic in answer.topics
    ]


def ask(harness: ReplicaHarness, timestamp: Any, name: str = "t", index: int = 0, **request: Any) -> Any:
    return ask_all(harness, [(name, [(index, timestamp)])], **request)[0][0]


# ---------------------------------------------------------------- ListOffsets


def test_an_empty_partition_has_offsets_but_no_timestamp(harness: ReplicaHarness) -> None:
    assert ask(harness, LATEST) == (0, -1, 0, 3)
    assert ask(harness, EARLIEST)[:3] == (0, -1, 0)
    assert ask(harness, MAX_TIMESTAMP) == NOTHING
    assert ask(harness, NOW_MS) == NOTHING


def test_first_record_at_or_after_a_time_is_found_inside_its_batch(harness: ReplicaHarness) -> None:
    fill(harness, 0, 10, 20)
    fill(harness, 30, 25, 40)
    for time, record, offset in ((0, 0, 0), (10, 10, 1), (11, 20, 2), (31, 40, 5)):
        assert ask(harness, NOW_MS + time) == (0, NOW_MS + record, offset, 3)
    assert ask(harness, NOW_MS + 41) == NOTHING
    assert ask(harness, MAX_TIMESTAMP) == (0, NOW_MS + 40, 5, 3)


@pytest.mark.parametrize(
    ("timestamp", "first"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING, 11)]
)
def test_special_timestamps_unknown_to_the_version_are_unsupported(
    harness: ReplicaHarness, timestamp: Any, first: int
) -> None:
    fill(harness, 0)
    assert ask(harness, timestamp, version=first)[0] == 0
    assert ask(harness, timestamp, version=first - 1)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert ask(harness, -7)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_latest_offset_depends_on_the_replica_id(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    fill(harness, 0, 1, 2, name="r")
    harness.fetch("r", offset=1, replica=2)
    fill(harness, 3, name="r")
    assert ask(harness, LATEST, "r")[2] == 1
    assert ask(harness, LATEST, "r", isolation=1)[2] == 1
    assert ask(harness, LATEST, "r", replica=-2)[2] == 4
    assert ask(harness, LATEST, "r", replica=2)[2] == 4
    assert ask(harness, NOW_MS + 1, "r") == NOTHING
    assert ask(harness, NOW_MS + 1, "r", replica=2)[2] == 1


def test_only_the_debugging_consumer_may_query_a_follower(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    fill(harness, 0, name="r")
    harness.change("r", leader=2)
    assert ask(harness, EARLIEST, "r")[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(harness, EARLIEST, "r", replica=-2)[0] == 0
    harness.create("o", replicas=(2,), leader=2)
    assert ask(harness, EARLIEST, "o", replica=-2)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (3, 0), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_list_offsets_with_another_leader_epoch_fails(
    harness: ReplicaHarness, epoch: int, code: ErrorCode | int
) -> None:
    assert ask(harness, LATEST, epoch=epoch)[0] == code


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_lagging_new_leader_returns_the_versions_error(
    harness: ReplicaHarness, version: int, code: ErrorCode
) -> None:
    harness.create("r", replicas=(1, 2))
    fill(harness, 0, name="r")
    harness.change("r", leader=1)
    assert ask(harness, LATEST, "r", version=version)[0] == code


def test_a_repeated_partition_is_invalid(harness: ReplicaHarness) -> None:
    invalid = (ErrorCode.INVALID_REQUEST, -1, -1, -1)
    harness.create("u", partitions=2)
    answers = ask_all(harness, [("u", [(0, LATEST), (1, LATEST)]), ("u", [(0, EARLIEST)])])
    assert answers == [[invalid, (0, -1, 0, 0)], [invalid]]


def test_unknown_and_unauthorized_partitions_fail_separately(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.DESCRIBE, Resource.TOPIC, "secret")))
    for name in ("t", "secret"):
        harness.create(name)
    answers = ask_all(
        harness, [("nowhere", [(0, LATEST)]), ("t", [(0, LATEST), (9, LATEST)]), ("secret", [(0, LATEST)])]
    )
    assert [[part[0] for part in topic] for topic in answers] == [
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.TOPIC_AUTHORIZATION_FAILED],
    ]


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_failing_disk_is_a_storage_error(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(harness, 0)

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("read", "x")

    monkeypatch.setattr(LogReader, "offset_for_timestamp", fail)
    assert ask(harness, NOW_MS)[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert ask(harness, LATEST)[0] == ErrorCode.KAFKA_STORAGE_ERROR


# ---------------------------------------------------------------- OffsetForLeaderEpoch


def end_of(
    harness: ReplicaHarness, epoch: int, name: str = "t", index: int = 0, current: int = -1, version: int = 4
) -> tuple[Any, ...]:
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    topics = [{"topic": name, "partitions": [partition]}]
    request = message(OffsetForLeaderEpochRequest, replica_id=-1, topics=topics)
    answer = harness.offsets.offset_for_leader_epoch(harness.context(23, version), request).result()
    decode(OffsetForLeaderEpochResponse, version, encode(answer, version))
    part = answer.topics[0].partitions[0]
    return part.error_code, part.leader_epoch, part.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_leader_epoch_ends_where_the_next_one_starts(harness: ReplicaHarness, version: int) -> None:
    fill(harness, 0, 1)
    harness.change("t", leader=1)
    harness.change("t", leader=1)
    fill(harness, 2)
    assert end_of(harness, 3, version=version) == (0, 3, 2)
    assert end_of(harness, 4, version=version) == (0, 3, 2)
    assert end_of(harness, 5, version=version) == (0, 5, 3)
    assert end_of(harness, 2, version=version) == (0, 2, 0)  # older than all that is here: from the start, as in Kafka
    assert end_of(harness, 9, version=version) == (0, -1, -1)


def test_offset_for_leader_epoch_checks_the_current_epoch(harness: ReplicaHarness) -> None:
    assert end_of(harness, 3, current=2)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert end_of(harness, 3, current=4)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert end_of(harness, 3, name="nowhere")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.create("o", replicas=(2,), leader=2)
    assert end_of(harness, 0, name="o")[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_brokers_query_all_epochs_clients_need_describe(tmp_path: Path) -> None:
    describe = (Operation.DESCRIBE, Resource.TOPIC, "t")
    act = (Operation.CLUSTER_ACTION, Resource.CLUSTER, None)
    for number, (denied, code) in enumerate(
        [((), 0), ((describe,), 0), ((act,), 0), ((describe, act), ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    ):
        harness = ReplicaHarness(tmp_path / str(number), authorizer=Deny(*denied))
        harness.create("t")
        assert end_of(harness, 0)[0] == code
