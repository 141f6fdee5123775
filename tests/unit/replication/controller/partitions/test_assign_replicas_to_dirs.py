"""Tests of assign_replicas_to_dirs.py and broker/peers/assignments_manager.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.peers.assignments_manager import AssignmentsManager
from protocol.errors import ErrorCode
from protocol.messages import common, quorum
from protocol.messages.common import PartitionIndex
from replication.completion import Completion, completed
from replication.controller.partitions.assign_replicas_to_dirs import assign_replicas
from replication.metadata.feature_levels import WITH_DIRECTORIES
from replication.metadata.image import (
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionState,
)
from tests.support.controller_harness import ControllerHarness
from tests.support.replica_harness import ReplicaHarness
from tests.unit.replication.controller.partitions.test_elections import TOPIC, cluster, context, directories

E = ErrorCode


def assign(
    image: MetadataImage, topic_id: bytes, index: int, directory: bytes, *, broker: int = 1, epoch: int = 1
) -> Any:
    topic = common.TopicById(topic_id=topic_id, partitions=[PartitionIndex(partition_index=index)])
    request = quorum.AssignReplicasToDirsRequest(
        broker_id=broker,
        broker_epoch=epoch,
        directories=[quorum.AssignReplicasToDirsDirectory(id=directory, topics=[topic])],
    )
    return assign_replicas(context(image), request)


def image_with_directories(*where: bytes, replicas: tuple[int, ...] = (2, 1)) -> MetadataImage:
    state = PartitionState(replicas, replicas, replicas[0], 5, 7, directories=where)
    return cluster(state, {1, 2, 3})


def test_only_the_directory_of_the_reporting_replica_changes() -> None:
    """The leader and its epoch stay."""
    (current, other), (of_leader, _) = directories(1), directories(2)
    decision = assign(image_with_directories(of_leader, current), TOPIC, 0, other)
    ((record, version),) = decision.records
    assert (record.directories, record.leader, version) == ([of_leader, other], -2, 2)
    assert decision.reply.directories[0].topics[0].partitions[0].error_code == E.NONE


def test_a_replica_in_an_offline_directory_leaves_the_isr() -> None:
    """The report arrives after the disk failed."""
    _, other = directories(1)
    ((record, _),) = assign(
        image_with_directories(UNASSIGNED_DIRECTORY, replicas=(1,)), TOPIC, 0, b"failed" * 2 + b"1234"
    ).records
    assert (record.directories, record.leader, record.isr) == ([b"failed" * 2 + b"1234"], NO_LEADER, [])
    back = PartitionState((1,), (), NO_LEADER, 5, 7, (b"failed" * 2 + b"1234",), eligible_leaders=(1,))
    ((record, _),) = assign(cluster(back, {1, 2, 3}), TOPIC, 0, other).records
    assert (record.directories, record.leader, record.isr) == ([other], 1, [1])


def test_unknown_directories_of_other_replicas_stay_unassigned() -> None:
    _, other = directories(1)
    ((record, _),) = assign(image_with_directories(), TOPIC, 0, other).records
    assert record.directories == [UNASSIGNED_DIRECTORY, other]


def test_an_unchanged_directory_needs_no_record() -> None:
    current, _ = directories(1)
    decision = assign(image_with_directories(directories(2)[0], current), TOPIC, 0, current)
    assert decision.records == []
    assert decision.reply.error_code == E.NONE


@pytest.mark.parametrize(
    ("topic_id", "index", "broker", "code"),
    [
        (b"?" * 16, 0, 1, E.UNKNOWN_TOPIC_ID),
        (TOPIC, 9, 1, E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, 0, 3, E.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_error_codes_are_those_of_kafka(topic_id: bytes, index: int, broker: int, code: ErrorCode) -> None:
    decision = assign(image_with_directories(), topic_id, index, directories(1)[0], broker=broker)
    assert decision.records == []
    assert decision.reply.directories[0].topics[0].partitions[0].error_code == code


@pytest.mark.parametrize(("broker", "epoch"), [(1, 2), (9, 1)])
def test_a_stale_broker_epoch_is_rejected(broker: int, epoch: int) -> None:
    decision = assign(image_with_directories(), TOPIC, 0, directories(1)[0], broker=broker, epoch=epoch)
    assert (decision.records, decision.reply.error_code) == ([], E.STALE_BROKER_EPOCH)


# ---- requests --------------------------------------------------------------------------------------------


def reported_directories(
    harness: ReplicaHarness, metadata_directory: bytes, version: int = WITH_DIRECTORIES
) -> list[bytes]:
    """The directories that the broker reports if the metadata contain this one."""
    _, second = harness.log_manager.directories
    harness.log_manager.placement.prefer(("t", 0), second)
    harness.create()
    partition = harness.partition()
    state = harness.image.topics_by_name["t"].partitions[0]
    topic = SimpleNamespace(partitions={0: state._replace(directories=(metadata_directory,))})
    requested: list[Any] = []

    def submit(request: Any) -> Completion[Any]:
        requested.append(request)
        return Completion()

    controller: Any = SimpleNamespace(
        image=SimpleNamespace(topics_by_name={"t": topic}, metadata_version=version),
        epoch=11,
        submit=submit,
    )
    image: Any = controller.image
    list(assignments_manager(harness, controller).reconcile([partition], image))
    return [directory.id for request in requested for directory in request.directories]


def assignments_manager(harness: ReplicaHarness, controller: Any) -> AssignmentsManager:
    clock: Any = SimpleNamespace(mono_ms=lambda: harness.mono_ms)
    return AssignmentsManager(controller, controller, harness.log_manager, 1, harness.timers, clock)


def test_only_changed_directories_are_reported(tmp_path: Path) -> None:
    home = bytes([1]) * 16
    cases = [(b"x" * 16, [home]), (home, []), (UNASSIGNED_DIRECTORY, [home]), (MIGRATING_DIRECTORY, [home])]
    for number, (metadata_directory, expected) in enumerate(cases):
        assert (
            reported_directories(ReplicaHarness(tmp_path / str(number), directories=2), metadata_directory) == expected
        )
    assert (
        reported_directories(ReplicaHarness(tmp_path / "older", directories=2), b"x" * 16, WITH_DIRECTORIES - 1) == []
    )


def test_assignments_of_a_stale_broker_epoch_are_sent_again(tmp_path: Path) -> None:
    """The epoch is stale while the broker registers again; the next request has the new one."""
    harness = ReplicaHarness(tmp_path, directories=2)
    harness.create()
    partition = harness.partition()
    requested: list[Any] = []
    codes = [E.STALE_BROKER_EPOCH, E.STALE_BROKER_EPOCH, E.NONE]

    def submit(request: Any) -> Completion[Any]:
        requested.append(request)
        return completed(quorum.AssignReplicasToDirsResponse(error_code=codes[len(requested) - 1], directories=[]))

    image = SimpleNamespace(topics_by_name=harness.image.topics_by_name, metadata_version=WITH_DIRECTORIES)
    controller: Any = SimpleNamespace(image=image, epoch=-1, submit=submit)
    assignments_manager(harness, controller).assign(partition)
    controller.epoch = 12
    for _ in range(5):
        harness.mono_ms += 1000
        harness.timers.run_due(harness.mono_ms)
    assert [request.broker_epoch for request in requested] == [-1, 12, 12]
    home = harness.log_manager.directory_ids[partition.log.directory]
    assert [request.directories[0].id for request in requested] == [home] * 3


def test_a_moved_replica_is_reported(tmp_path: Path) -> None:
    """By `LogDirMoves.on_moved`."""
    harness = ReplicaHarness(tmp_path, directories=2)
    harness.create()
    moved: list[str] = []
    harness.moves.on_moved = lambda partition: moved.append(partition.log.directory)
    _, second = harness.log_manager.directories
    harness.moves.alter("t", 0, second)
    assert moved == [second]


def test_the_controller_handles_the_request(tmp_path: Path) -> None:
    with_controller = ControllerHarness(tmp_path)
    with_controller.format()
    with_controller.start()
    request = quorum.AssignReplicasToDirsRequest(broker_id=9, broker_epoch=1, directories=[])
    assert with_controller.ask(request).error_code == E.STALE_BROKER_EPOCH
