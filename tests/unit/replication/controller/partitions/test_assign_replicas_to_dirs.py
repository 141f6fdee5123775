"""Guards replication/controller/partitions/assign_replicas_to_dirs.py and broker/peers/assignments_manager.py: where replicas lie."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.peers.assignments_manager import AssignmentsManager
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AssignReplicasToDirsDirectory,
    AssignReplicasToDirsPartition,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsTopic,
)
from replication.controller.partitions.assign_replicas_to_dirs import assign_replicas
from replication.metadata.feature_levels import WITH_DIRECTORIES
from replication.metadata.image import (
    MIGRATING_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionState,
)
from tests.support.controller_harness import ControllerWorld
from tests.support.replica_harness import World
from tests.unit.replication.controller.partitions.test_elections import ENVIRONMENT, TOPIC, cluster, directories

E = ErrorCode


def ask(image: MetadataImage, topic_id: bytes, index: int, directory: bytes, *, broker: int = 1, epoch: int = 1) -> Any:
    topic = AssignReplicasToDirsTopic(
        topic_id=topic_id, partitions=[AssignReplicasToDirsPartition(partition_index=index)]
    )
    request = AssignReplicasToDirsRequest(
        broker_id=broker,
        broker_epoch=epoch,
        directories=[AssignReplicasToDirsDirectory(id=directory, topics=[topic])],
    )
    return assign_replicas(image, ENVIRONMENT, request)


def lying(*where: bytes, replicas: tuple[int, ...] = (2, 1)) -> MetadataImage:
    state = PartitionState(replicas, replicas, replicas[0], 5, 7, directories=where)
    return cluster(state, {1, 2, 3})


def test_the_directory_of_the_own_replica_is_noted_and_no_other() -> None:
    """The leader and its epoch stay."""
    (here, there), (elsewhere, _) = directories(1), directories(2)
    decision = ask(lying(elsewhere, here), TOPIC, 0, there)
    ((record, version),) = decision.records
    assert (record.directories, record.leader, version) == ([elsewhere, there], -2, 2)
    assert decision.reply.directories[0].topics[0].partitions[0].error_code == E.NONE


def test_a_replica_in_a_directory_that_is_out_of_service_has_left() -> None:
    """Rule 2: its broker says so late, for it was made when the disk failed."""
    _, there = directories(1)
    ((record, _),) = ask(lying(UNASSIGNED_DIRECTORY, replicas=(1,)), TOPIC, 0, b"failed" * 2 + b"1234").records
    assert (record.directories, record.leader, record.isr) == ([b"failed" * 2 + b"1234"], NO_LEADER, [])
    back = PartitionState((1,), (), NO_LEADER, 5, 7, (b"failed" * 2 + b"1234",), eligible_leaders=(1,))
    ((record, _),) = ask(cluster(back, {1, 2, 3}), TOPIC, 0, there).records
    assert (record.directories, record.leader, record.isr) == ([there], 1, [1])


def test_where_nothing_was_known_the_others_stay_unknown() -> None:
    _, there = directories(1)
    ((record, _),) = ask(lying(), TOPIC, 0, there).records
    assert record.directories == [UNASSIGNED_DIRECTORY, there]


def test_what_is_known_already_needs_no_record() -> None:
    here, _ = directories(1)
    decision = ask(lying(directories(2)[0], here), TOPIC, 0, here)
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
def test_refusals_are_kafkas(topic_id: bytes, index: int, broker: int, code: ErrorCode) -> None:
    decision = ask(lying(), topic_id, index, directories(1)[0], broker=broker)
    assert decision.records == []
    assert decision.reply.directories[0].topics[0].partitions[0].error_code == code


@pytest.mark.parametrize(("broker", "epoch"), [(1, 2), (9, 1)])
def test_an_older_process_is_refused(broker: int, epoch: int) -> None:
    decision = ask(lying(), TOPIC, 0, directories(1)[0], broker=broker, epoch=epoch)
    assert (decision.records, decision.reply.error_code) == ([], E.STALE_BROKER_EPOCH)


# ---- asking ----------------------------------------------------------------------------------------------


def told(world: World, named: bytes, version: int = WITH_DIRECTORIES) -> list[bytes]:
    """Which directories the controller is told when the metadata name this one."""
    _, second = world.log_manager.directories
    world.log_manager.set_preferred_log_dir("t", 0, second)
    world.create()
    partition = world.partition()
    state = world.image.topics_by_name["t"].partitions[0]
    known = SimpleNamespace(partitions={0: state._replace(directories=(named,))})
    requested: list[Any] = []

    def submit(request: Any, *, wall_ms: int, reply: Any) -> None:
        requested.append(request)

    controller: Any = SimpleNamespace(
        image=SimpleNamespace(topics_by_name={"t": known}, metadata_version=version),
        epoch=11,
        submit=submit,
    )
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    image: Any = controller.image
    for _ in AssignmentsManager(controller, controller, world.log_manager, 1, clock).reconcile([partition], image):
        pass
    return [directory.id for request in requested for directory in request.directories]


def test_only_what_lies_elsewhere_is_told(tmp_path: Path) -> None:
    """Rules 1 and 2."""
    home = bytes([1]) * 16
    cases = [(b"x" * 16, [home]), (home, []), (UNASSIGNED_DIRECTORY, [home]), (MIGRATING_DIRECTORY, [home])]
    for number, (named, expected) in enumerate(cases):
        assert told(World(tmp_path / str(number), directories=2), named) == expected
    assert told(World(tmp_path / "older", directories=2), b"x" * 16, WITH_DIRECTORIES - 1) == []


def test_a_replica_that_has_moved_is_told_of(tmp_path: Path) -> None:
    """By `LogDirMoves.on_moved`, when it lies there."""
    world = World(tmp_path, directories=2)
    world.create()
    heard: list[str] = []
    world.moves.on_moved = lambda partition: heard.append(partition.log.directory)
    _, second = world.log_manager.directories
    world.moves.alter("t", 0, second)
    assert heard == [second]


def test_the_controller_decides_on_it(tmp_path: Path) -> None:
    """Through `submit`, as on every request."""
    with_controller = ControllerWorld(tmp_path)
    with_controller.format()
    with_controller.start()
    request = AssignReplicasToDirsRequest(broker_id=9, broker_epoch=1, directories=[])
    assert with_controller.ask(request).error_code == E.STALE_BROKER_EPOCH
