"""DescribeLogDirs and AlterReplicaLogDirs, on real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.handlers.records.log_dirs import LogDirsHandler
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from protocol.messages.stored_records import BrokerRegistrationChangeRecord
from storage.io.disk import Disk, StorageError
from tests.support.deny import Deny
from tests.support.replica_harness import Answer, HeldIoExecutor, ReplicaHarness, batch

E = ErrorCode


def ask(world: ReplicaHarness, *topics: tuple[str, list[int]], everything: bool = False, version: int = 5) -> Answer:
    handler = LogDirsHandler(world.log_manager, world.replicas, world.moves, world.worker, world.authorizer)
    described = [DescribableLogDirTopic(topic=name, partitions=partitions) for name, partitions in topics]
    request = DescribeLogDirsRequest(topics=None if everything else described)
    return Answer(handler.describe(world.context(35, version), request), DescribeLogDirsResponse, version)


def described(answer: Answer) -> list[DescribeLogDirsResult]:
    assert answer.is_done, "not answered yet"
    assert answer.message.error_code == E.NONE
    results: list[DescribeLogDirsResult] = answer.message.results
    return results


def logs(*results: DescribeLogDirsResult) -> dict[tuple[str, int], DescribeLogDirsPartition]:
    return {(t.name, p.partition_index): p for result in results for t in result.topics for p in t.partitions}


@pytest.fixture
def world(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path, directories=2)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_every_log_is_in_its_directory_with_its_size(world: ReplicaHarness, version: int) -> None:
    world.create(partitions=3)
    size = len(batch(size=700))
    world.load(index=1, batches=2, size=700)
    results = described(ask(world, everything=True, version=version))
    assert [result.log_dir for result in results] == list(world.log_manager.directories)
    for result in results:
        for key in logs(result):
            assert world.partition(*key).log.directory == result.log_dir
    sizes = {key: found.partition_size for key, found in logs(*results).items()}
    assert sizes == {("t", 0): 0, ("t", 1): 2 * size, ("t", 2): 0}
    assert {found.is_future_key for found in logs(*results).values()} == {False}


def test_describing_log_dirs_does_not_open_logs(world: ReplicaHarness) -> None:
    world.create(partitions=2)
    world.load(index=0, batches=2, size=700)
    log = world.partition().log
    size = log.size_bytes
    log.close()
    found = logs(*described(ask(world, everything=True)))
    assert found["t", 0].partition_size == size > 1400
    assert not log.is_open
    assert not world.partition(index=1).log.is_open


def test_only_requested_partitions_are_described(world: ReplicaHarness) -> None:
    world.create(partitions=3)
    world.create("u")
    assert set(logs(*described(ask(world, ("t", [1, 9]), ("nope", [0]))))) == {("t", 1)}
    nothing = described(ask(world))
    assert not logs(*nothing)
    assert [result.error_code for result in nothing] == [E.NONE, E.NONE]


def test_file_system_sizes_are_returned(world: ReplicaHarness, tmp_path: Path) -> None:
    result = described(ask(world))[0]
    assert result.total_bytes == Disk().total_bytes(str(tmp_path))
    assert 0 < result.usable_bytes <= result.total_bytes


def test_a_directory_that_is_offline_is_an_error(world: ReplicaHarness) -> None:
    world.create(partitions=2)
    first, second = world.log_manager.directories
    world.replicas.directory_failed(first, StorageError("read", first, OSError(5, "Input/output error")))
    results = {result.log_dir: result for result in described(ask(world, everything=True))}
    assert (results[first].error_code, results[first].total_bytes) == (E.KAFKA_STORAGE_ERROR, -1)
    assert logs(results[first]) == {}
    assert results[second].error_code == E.NONE
    assert len(logs(results[second])) == 1


def test_a_failed_file_system_takes_its_directory_offline(
    world: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = world.log_manager.directories

    def fail(self: Disk, path: str) -> int:
        if path == first:
            raise StorageError("ask the free space of", path, OSError(5, "Input/output error"))
        return 7

    monkeypatch.setattr(Disk, "free_bytes", fail)
    assert [result.error_code for result in described(ask(world))] == [E.KAFKA_STORAGE_ERROR, E.NONE]
    assert list(world.log_manager.offline) == [first]


def test_a_log_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    world = ReplicaHarness(tmp_path, worker=worker)
    world.create()
    worker.holds_reads = True
    answer = ask(world, everything=True)
    assert not answer.is_done
    world.delete()
    worker.let_read()
    assert logs(*described(answer)) == {}
    assert not world.log_manager.offline


def test_cordoned_directories_are_described(world: ReplicaHarness) -> None:
    ids = [directory.directory_id for directory in world.log_manager.directories.values()]
    world.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, log_dirs=ids, cordoned_log_dirs=[ids[1]]))
    assert [result.is_cordoned for result in described(ask(world))] == [False, True]


@pytest.mark.parametrize("version", [2, 3])
def test_describing_log_dirs_requires_describe_on_the_cluster(tmp_path: Path, version: int) -> None:
    world = ReplicaHarness(tmp_path, authorizer=Deny((Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")))
    answer = ask(world, everything=True, version=version).message
    assert (answer.results, answer.error_code) == ([], E.CLUSTER_AUTHORIZATION_FAILED)


# ---- moving ----------------------------------------------------------------------------------------------


def alter(
    world: ReplicaHarness, *moves: tuple[str, str, list[int]], version: int = 2
) -> list[tuple[str, int, ErrorCode]]:
    """Send (directory, topic, partitions); returns the results."""
    handler = LogDirsHandler(world.log_manager, world.replicas, world.moves, world.worker, world.authorizer)
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=partitions)])
            for path, name, partitions in moves
        ]
    )
    response = handler.alter(world.context(34, version), request)
    answer = Answer(response, AlterReplicaLogDirsResponse, version)
    return [
        (topic.topic_name, row.partition_index, ErrorCode(row.error_code))
        for topic in answer.message.results
        for row in topic.partitions
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_are_moved_to_the_requested_directory(world: ReplicaHarness, version: int) -> None:
    first, second = world.log_manager.directories
    world.create(partitions=2)
    moves = (first, "t", [0, 1]), (second, "t", [1]), (second, "nope", [0])
    assert alter(world, *moves, version=version) == [
        ("t", 0, E.NONE), ("t", 1, E.NONE), ("nope", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert [world.partition(index=index).log.directory for index in (0, 1)] == [first, second]


def test_a_future_replica_is_described_with_its_lag(world: ReplicaHarness) -> None:
    world.create()
    world.load(batches=3, size=700)
    log = world.partition().log
    (target,) = set(world.log_manager.directories) - {log.directory}
    copy, work = world.log_manager.new_future_log(log, target, 0)
    work()
    world.log_manager.add_future_log(copy)
    results = {result.log_dir: logs(result) for result in described(ask(world, everything=True))}
    assert results[log.directory]["t", 0].is_future_key is False
    lacking = results[target]["t", 0]
    assert (lacking.is_future_key, lacking.offset_lag, lacking.partition_size) == (True, 3, 0)


def test_moving_replicas_requires_alter_on_the_cluster(tmp_path: Path) -> None:
    world = ReplicaHarness(
        tmp_path, authorizer=Deny((Operation.ALTER, Resource.CLUSTER, "kafka-cluster")), directories=2
    )
    world.create()
    before = world.partition().log
    rows = [alter(world, (path, "t", [0])) for path in world.log_manager.directories]
    assert rows == [[("t", 0, E.CLUSTER_AUTHORIZATION_FAILED)]] * 2
    assert world.partition().log is before
