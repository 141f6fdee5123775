"""Group coordinators over real partitions: files, flushes, failing directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.coordinators.group_config import GroupConfigManager, GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.coordinators.group_counts import GroupCounts
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from broker.coordinators.runtime.partition_writer import PartitionWriter
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from protocol.errors import ErrorCode
from replication.completion import Completion
from replication.io_executor import SUCCEEDED, IoResult, Run
from replication.metadata.image import MetadataDelta, MetadataImage
from storage.io.disk import StorageError
from tests.support.cold_disk import ColdDisk
from tests.support.group_requests import commit_request, error_of, fetch_request
from tests.support.replica_harness import HeldIoExecutor, ReplicaHarness


class HeldSyncs(HeldIoExecutor):
    """Writes at once; flushes on request."""

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        run()
        return SUCCEEDED


class Coordination:
    """The offset handlers over the partitions of a replica harness, which is the clock too."""

    def __init__(self, harness: ReplicaHarness, *, is_patient: bool = True) -> None:
        self.harness = harness
        settings = GroupSettings()

        def image() -> MetadataImage:
            return harness.image

        configs = GroupConfigManager(settings.consumer, image)
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            lambda host: GroupCoordinator(host, settings, configs, lambda: "id", image, GroupCounts()),
            lambda partition: PartitionWriter(harness.replicas, OFFSETS_TOPIC, partition, self),
            harness.timers,
            self,
        )
        no_verification: Any = None  # no transactions
        self.handlers = GroupOffsetsHandlers(self.runtime, no_verification, image, harness.authorizer)
        self.take_over()
        while is_patient and self.runtime.is_loading:
            harness.pass_time(1)

    def mono_ms(self) -> int:
        return self.harness.mono_ms

    def wall_ms(self) -> int:
        return self.harness.wall_ms

    def take_over(self) -> None:
        """Become coordinator as the image says."""
        self.runtime.on_metadata_update(MetadataDelta.from_empty(self.harness.image), self.harness.image, 1)

    def commit(self, offset: int) -> Completion[Any]:
        answer = self.handlers.offset_commit(self.harness.context(8, 8), commit_request(offset))
        assert isinstance(answer, Completion)
        return answer

    def fetch(self) -> Completion[Any]:
        return self.handlers.offset_fetch(self.harness.context(9, 8), fetch_request())

    def committed(self) -> int:
        answer = self.fetch().result()
        assert answer.groups[0].error_code == 0, answer
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def topics(harness: ReplicaHarness, partitions: int = 1, **config: Any) -> ReplicaHarness:
    """With a topic for offsets and another one."""
    harness.create(OFFSETS_TOPIC, partitions, **config)
    harness.create("t", 1)
    return harness


def test_commits_survive_in_the_partitions_files(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create(OFFSETS_TOPIC, 3, cleanup_policy="compact")
    harness.create("t", 3)
    first = Coordination(harness)
    for offset in range(10):
        assert error_of(first.commit(offset).result()) is ErrorCode.NONE
    first.runtime.close()
    assert Coordination(harness).committed() == 9
    assert sum(partition.log.log_end_offset for (topic, _), partition in harness.replicas.partitions.items()
               if topic == OFFSETS_TOPIC) == 10  # fmt: skip


def test_with_flush_messages_a_commit_waits_for_the_flush(tmp_path: Path) -> None:
    worker = HeldSyncs()
    harness = topics(ReplicaHarness(tmp_path, worker=worker), flush_messages=1)
    worker.let_sync()  # of the new log's names
    groups = Coordination(harness)
    written, read = groups.commit(5), groups.fetch()
    assert not written.is_done
    assert not read.is_done
    worker.let_sync()
    assert error_of(written.result()) is ErrorCode.NONE
    assert read.result().groups[0].topics[0].partitions[0].committed_offset == 5
    again = groups.commit(6)
    harness.pass_time(5_000)
    assert error_of(again.result()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    worker.let_sync()
    assert groups.committed() == 6


def test_commits_are_answered_in_order_on_a_slow_directory(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = topics(ReplicaHarness(tmp_path, worker=worker))
    groups = Coordination(harness)
    first, second, read = groups.commit(5), groups.commit(6), groups.fetch()
    worker.let_write()
    assert (error_of(first.result()), second.is_done, read.is_done) == (ErrorCode.NONE, False, False)
    worker.let_write()
    assert error_of(second.result()) is ErrorCode.NONE
    assert read.result().groups[0].topics[0].partitions[0].committed_offset == 6


def test_a_failed_flush_fails_the_commit(tmp_path: Path) -> None:
    worker = HeldSyncs()
    harness = topics(ReplicaHarness(tmp_path, worker=worker), flush_messages=1)
    worker.let_sync()  # of the new log's names
    groups = Coordination(harness)
    written = groups.commit(5)
    worker.let_sync(StorageError("sync", "the test's own disk"))
    assert error_of(written.result()) is ErrorCode.NOT_COORDINATOR
    assert error_of(groups.commit(6).result()) is ErrorCode.NOT_COORDINATOR


def test_an_unreadable_partition_is_not_coordinated(tmp_path: Path) -> None:
    harness = topics(ReplicaHarness(tmp_path), 2)
    groups = Coordination(harness)
    groups.runtime.close()
    del harness.replicas.partitions[OFFSETS_TOPIC, 0]
    groups.take_over()
    assert list(groups.runtime.shards) == [1]


def test_a_step_down_fails_waiting_commits(tmp_path: Path) -> None:
    harness = topics(ReplicaHarness(tmp_path), replicas=(1, 2), isr=(1, 2))
    groups = Coordination(harness)
    written = groups.commit(5)
    assert not written.is_done
    harness.change(OFFSETS_TOPIC, leader=2)
    groups.runtime.on_resignation(0)
    assert error_of(written.result()) is ErrorCode.NOT_COORDINATOR


def test_an_append_that_waits_for_the_disk_is_not_rejected_later(tmp_path: Path) -> None:
    worker = HeldSyncs()
    harness = ReplicaHarness(tmp_path, worker=worker, disk=ColdDisk(keeps=False))
    topics(harness, replicas=(1, 2), isr=(1, 2), min_insync_replicas=2)
    groups = Coordination(harness)
    worker.holds_reads = True
    written = groups.commit(5)
    harness.change(OFFSETS_TOPIC, isr=[1])
    assert error_of(groups.commit(6).result()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    worker.let_read()
    worker.holds_reads = False
    assert not written.is_done, "it waits for the other replica"
    groups.runtime.close()
    assert Coordination(harness).committed() == 5, "the offset that the group had is in the log"


@pytest.mark.parametrize("size", [1, 40])
def test_a_group_can_be_deleted_with_many_offsets(tmp_path: Path, size: int) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create(OFFSETS_TOPIC, 1, max_message_bytes=1_000)
    harness.create("t", size)
    groups = Coordination(harness)
    request = commit_request(7, count=size)
    committed: Any = groups.handlers.offset_commit(harness.context(8, 8), request)
    assert error_of(committed.result()) is ErrorCode.NONE
    deleted = groups.runtime.write("g", lambda coordinator: coordinator.delete(["g"]), lambda _: [])
    assert [one.error_code for one in deleted.result()] == [ErrorCode.NONE]
    groups.runtime.close()
    assert Coordination(harness).committed() == -1


def test_loading_does_not_block_on_a_cold_disk(tmp_path: Path) -> None:
    worker, disk = HeldSyncs(), ColdDisk(keeps=False)
    harness = topics(ReplicaHarness(tmp_path, worker=worker, disk=disk), cleanup_policy="compact")
    first = Coordination(harness)
    for offset in range(10):
        first.commit(offset)
    first.runtime.close()
    log = harness.replicas.find(OFFSETS_TOPIC, 0).log
    log.close()
    worker.holds_reads = True
    with disk.blocking_forbidden():
        second = Coordination(harness, is_patient=False)
    waits = 0
    while second.runtime.is_loading:
        if worker.reads:
            waits += 1
            worker.let_read()
        with disk.blocking_forbidden():
            harness.pass_time(1)
    assert waits >= 2
    assert second.committed() == 9


def test_a_new_partition_serves_at_once(tmp_path: Path) -> None:
    worker, disk = HeldSyncs(), ColdDisk(keeps=False)
    harness = ReplicaHarness(tmp_path, worker=worker, disk=disk)
    harness.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
    worker.holds_reads = True
    with disk.blocking_forbidden():
        assert not Coordination(harness, is_patient=False).runtime.is_loading
