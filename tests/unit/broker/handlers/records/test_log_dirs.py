"""DescribeLogDirs and AlterReplicaLogDirs, on real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.handlers.records.log_dirs import LogDirsHandler
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.logs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from storage.directories.future_logs import add_future_log, new_future_log
from storage.io.disk import Disk, StorageError
from tests.support.deny import Deny
from tests.support.messages import message
from tests.support.replica_harness import Answer, HeldIoExecutor, ReplicaHarness, batch

E = ErrorCode


def ask(harness: ReplicaHarness, *topics: tuple[str, list[int]], everything: bool = False, version: int = 5) -> Answer:
    handler = LogDirsHandler(harness.log_manager, harness.replicas, harness.moves, harness.worker, harness.authorizer)
    described = [{"topic": name, "partitions": partitions} for name, partitions in topics]
    request = message(DescribeLogDirsRequest, topics=None if everything else described)
    return Answer(handler.describe(harness.context(35, version), request), DescribeLogDirsResponse, version)


def described(answer: Answer) -> list[DescribeLogDirsResult]:
    assert answer.is_done, "not answered yet"
    assert answer.message.error_code == E.NONE
    results: list[DescribeLogDirsResult] = answer.message.results
    return results


def logs(*results: DescribeLogDirsResult) -> dict[tuple[str, int], DescribeLogDirsPartition]:
    return {(t.name, p.partition_index): p for result in results for t in result.topics for p in t.partitions}


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path, directories=2)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_every_log_is_in_its_directory_with_its_size(harness: ReplicaHarness, version: int) -> None:
    harness.create(partitions=3)
    size = len(batch(size=700))
    harness.load(index=1, batches=2, size=700)
    results = described(ask(harness, everything=True, version=version))
    assert [result.log_dir for result in results] == list(harness.log_manager.directories)
    for result in results:
        for key in logs(result):
            assert harness.partition(*key).log.directory == result.log_dir
    sizes = {key: found.partition_size for key, found in logs(*results).items()}
    assert sizes == {("t", 0): 0, ("t", 1): 2 * size, ("t", 2): 0}
    assert {found.is_future_key for found in logs(*results).values()} == {False}


def test_describing_log_dirs_does_not_open_logs(harness: ReplicaHarness) -> None:
    harness.create(partitions=2)
    harness.load(index=0, batches=2, size=700)
    log = harness.partition().log
    size = log.open().engine.size_bytes
    log.close()
    found = logs(*described(ask(harness, everything=True)))
    assert found["t", 0].partition_size == size > 1400
    assert not log.is_open
    assert not harness.partition(index=1).log.is_open


def test_file_system_sizes_are_returned(harness: ReplicaHarness, tmp_path: Path) -> None:
    result = described(ask(harness))[0]
    assert result.total_bytes == Disk().space(str(tmp_path))[0]
    assert 0 < result.usable_bytes <= result.total_bytes


def test_a_directory_that_is_offline_is_an_error(harness: ReplicaHarness) -> None:
    harness.create(partitions=2)
    first, second = harness.log_manager.directories
    harness.replicas.directory_failed(first, StorageError("read", first, OSError(5, "Input/output error")))
    results = {result.log_dir: result for result in described(ask(harness, everything=True))}
    assert (results[first].error_code, results[first].total_bytes) == (E.KAFKA_STORAGE_ERROR, -1)
    assert logs(results[first]) == {}
    assert results[second].error_code == E.NONE
    assert len(logs(results[second])) == 1


def test_a_failed_file_system_takes_its_directory_offline(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = harness.log_manager.directories

    def fail(self: Disk, path: str) -> tuple[int, int]:
        if path == first:
            raise StorageError("ask the space of", path, OSError(5, "Input/output error"))
        return 7, 7

    monkeypatch.setattr(Disk, "space", fail)
    assert [result.error_code for result in described(ask(harness))] == [E.KAFKA_STORAGE_ERROR, E.NONE]
    assert list(harness.log_manager.offline) == [first]


def test_a_log_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create()
    worker.holds_reads = True
    answer = ask(harness, everything=True)
    assert not answer.is_done
    harness.delete()
    worker.let_read()
    assert logs(*described(answer)) == {}
    assert not harness.log_manager.offline


@pytest.mark.parametrize("version", [2, 3])
def test_describing_log_dirs_requires_describe_on_the_cluster(tmp_path: Path, version: int) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")))
    answer = ask(harness, everything=True, version=version).message
    assert (answer.results, answer.error_code) == ([], E.CLUSTER_AUTHORIZATION_FAILED)


# ---- moving ----------------------------------------------------------------------------------------------


def alter(
    harness: ReplicaHarness, *moves: tuple[str, str, list[int]], version: int = 2
) -> list[tuple[str, int, ErrorCode]]:
    """Send (directory, topic, partitions); returns the results."""
    handler = LogDirsHandler(harness.log_manager, harness.replicas, harness.moves, harness.worker, harness.authorizer)
    dirs = [{"path": path, "topics": [{"name": name, "partitions": partitions}]} for path, name, partitions in moves]
    request = message(AlterReplicaLogDirsRequest, dirs=dirs)
    response = handler.alter(harness.context(34, version), request)
    answer = Answer(response, AlterReplicaLogDirsResponse, version)
    return [
        (topic.topic_name, row.partition_index, ErrorCode(row.error_code))
        for topic in answer.message.results
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_are_moved_to_the_requested_directory(harness: ReplicaHarness, version: int) -> None:
    first, second = harness.log_manager.directories
    harness.create(partitions=2)
    moves = (first, "t", [0, 1]), (second, "t", [1]), (second, "nope", [0])
    assert alter(harness, *moves, version=version) == [
        ("t", 0, E.NONE), ("t", 1, E.NONE), ("nope", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert [harness.partition(index=index).log.directory for index in (0, 1)] == [first, second]


def test_a_future_replica_is_described_with_its_lag(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=3, size=700)
    log = harness.partition().log
    (target,) = set(harness.log_manager.directories) - {log.directory}
    copy, work = new_future_log(harness.log_manager, log, target, 0)
    work()
    add_future_log(harness.log_manager, copy)
    results = {result.log_dir: logs(result) for result in described(ask(harness, everything=True))}
    assert results[log.directory]["t", 0].is_future_key is False
    lacking = results[target]["t", 0]
    assert (lacking.is_future_key, lacking.offset_lag, lacking.partition_size) == (True, 3, 0)
