"""The rules of `MetadataLog`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from protocol.messages import stored_records
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from protocol.records import ControlType
from protocol.schema import Message
from replication.metadata.image import ResourceType
from replication.metadata.metadata_records import (
    SnapshotName,
    UnreadableMetadata,
    Versioned,
    read_batches,
    snapshot,
)
from replication.metadata_log.formatting import METADATA_DIRECTORY
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.quorum_state_store import read_quorum_state
from replication.metadata_log.snapshot_files import SnapshotFile
from replication.raft.raft_log import BecomeLeader, EpochEnd
from storage.io.disk import StorageError
from tests.support.admin_cases import topic
from tests.support.controller_harness import WALL_MS, ControllerHarness
from tests.support.faulty_disk import FaultyDisk
from tests.support.kafka import needs_kafka, run_tool
from tests.support.metadata_histories import data_batch
from tests.unit.replication.kafka_bytes import METADATA_LOG


def record(name: str) -> Versioned:
    return stored_records.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\1")), 0


def harness_with(path: Path, *batches: bytes | bytearray) -> ControllerHarness:
    """A formatted directory whose metadata log holds these batches."""
    harness = ControllerHarness(path)
    harness.log_path.write_bytes(b"".join(batches))
    return harness


def batch(*messages: Message, offset: int = 0, epoch: int = 1) -> bytearray:
    return data_batch(
        [(message, 0) for message in messages], base_offset=offset, leader_epoch=epoch, timestamp_ms=WALL_MS
    )


def metadata_version(level: int) -> stored_records.FeatureLevelRecord:
    return stored_records.FeatureLevelRecord(name="metadata.version", feature_level=level)


METADATA_VERSION = metadata_version(30)


def snapshot_of(*records: Versioned, epoch: int, control: Sequence[tuple[ControlType, Message]] = ()) -> bytes:
    return snapshot(control, records, leader_epoch=epoch, timestamp_ms=WALL_MS, last_contained_ms=WALL_MS)


class CommitRecorder:
    """Records which appends were committed, in order."""

    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.seen: list[str] = []

    def append(self, name: str) -> None:
        self.log.append([record(name)], wall_ms=WALL_MS, on_committed=lambda: self.seen.append(name))


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path).start()


# ---- startup -------------------------------------------------------------------------------------------


def test_every_start_begins_an_epoch_that_was_never_used(tmp_path: Path) -> None:
    for epoch in (1, 2):
        harness = ControllerHarness(tmp_path).start()
        assert harness.node.raft.epoch == epoch
        harness.log.close()
    harness = ControllerHarness(tmp_path)
    harness.worker.holds_writes = True
    harness.lead()  # the process ends before it has written anything
    assert harness.node.raft.epoch == 3
    harness = ControllerHarness(tmp_path).start()
    changes = [(b.leader_epoch, type(b.messages[0]).__name__) for b in harness.batches() if b.is_control]
    assert changes == [(1, "LeaderChangeMessage"), (2, "LeaderChangeMessage"), (4, "LeaderChangeMessage")]
    state = read_quorum_state(harness.disk, str(harness.log_path.parent))
    assert state is not None
    assert (state.epoch, state.leader_id) == (4, 1)


def test_the_election_state_is_durable_before_the_epochs_first_record(tmp_path: Path) -> None:
    disk = FaultyDisk()
    harness = ControllerHarness(tmp_path, disk=disk)
    disk.syncs.clear()
    harness.worker.holds_writes = True
    harness.lead()
    assert any(path.endswith("quorum-state.tmp") for path in disk.syncs)
    assert not any(path.endswith(".log") for path, _, _ in disk.writes)


def test_without_quorum_state_the_epoch_is_taken_from_the_log(tmp_path: Path) -> None:
    ControllerHarness(tmp_path).start().log.close()
    (tmp_path / METADATA_DIRECTORY / "quorum-state").unlink()
    assert ControllerHarness(tmp_path).start().node.raft.epoch == 2


def test_a_metadata_log_of_apache_kafka_is_replayed(tmp_path: Path) -> None:
    image = ControllerHarness(tmp_path).use_log(METADATA_LOG).open().image
    assert set(image.topics_by_name) == {"t1", "t2"}
    t2 = image.topics_by_name["t2"]
    assert list(t2.partitions) == [0, 1, 2, 3]
    assert t2.partitions[3].eligible_leaders == (1,)
    assert t2.partitions[3].leader == -1
    assert image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert image.configs[ResourceType.BROKER, "1"] == {"log.retention.ms": "600000"}
    assert image.topic_config("t2") == {"cleanup.policy": "delete", "min.insync.replicas": "1"}
    assert image.next_producer_id == 1000
    assert image.brokers[1].is_fenced
    assert image.controllers[1].endpoints[0].port == 27101
    assert (image.leader_id, image.epoch) == (1, 1)


def test_a_restarted_node_has_the_published_image(tmp_path: Path, harness: ControllerHarness) -> None:
    harness.ask(CreateTopicsRequest(topics=[topic("a", 3, configs=[("retention.ms", "5")]), topic("b")]))
    harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="b")], timeout_ms=0))
    before = harness.image
    harness.log.close()
    after = ControllerHarness(tmp_path).open().image
    for slot in type(before).__slots__:
        assert getattr(after, slot) == getattr(before, slot), slot


def test_appends_are_written_flushed_and_committed_in_order_without_blocking_the_caller(
    harness: ControllerHarness,
) -> None:
    size, worker = harness.log_path.stat().st_size, harness.worker
    worker.holds_writes = True
    committed: list[str] = []
    last = harness.log.next_offset - 1
    for name in ("a", "b"):
        offset = harness.log.append([record(name)], wall_ms=WALL_MS, on_committed=partial(committed.append, name))
        assert offset == last + 1 == harness.log.next_offset - 1
        last = offset
    assert harness.log_path.stat().st_size == size
    worker.is_held = True
    worker.complete_write()
    assert len(worker.syncs) == 1
    worker.complete_write()
    worker.complete_sync()
    assert committed == ["a"]
    worker.complete_sync()
    assert committed == ["a", "b"]
    assert not worker.syncs


def test_a_truncation_waits_for_pending_file_operations(harness: ControllerHarness) -> None:
    log, held, cut = harness.log, list[Callable[[], None]](), list[int]()
    end = log.end.offset
    log._log.submit_file_op(lambda: None, held.append)
    harness.worker.holds_writes = True
    log.truncate(end - 1, lambda: cut.append(log.end.offset))
    assert cut == []
    held.pop()()
    harness.worker.complete_write()
    assert cut == [log.end.offset]
    assert log.end.offset < end, "at the start of the batch"


def test_an_epoch_ends_where_the_next_one_starts_before_its_first_record_is_written(harness: ControllerHarness) -> None:
    log, before = harness.log, harness.log.end
    harness.worker.holds_writes = True
    log.begin_epoch(BecomeLeader(before.epoch + 4, [1]), 1, WALL_MS, lambda: None)
    after = log.end

    def look() -> None:
        assert log.end_of_epoch(before.epoch) == log.end_of_epoch(before.epoch + 3) == before
        assert log.end_of_epoch(before.epoch + 4) == log.end_of_epoch(before.epoch + 9) == after

    look()
    harness.worker.complete_write()
    look()


def test_an_incomplete_batch_is_truncated_and_committed_records_stay(
    tmp_path: Path, harness: ControllerHarness
) -> None:
    harness.ask(CreateTopicsRequest(topics=[topic("a")]))
    kept = harness.log_path.stat().st_size
    harness.ask(CreateTopicsRequest(topics=[topic("b")]))
    whole = harness.log_path.read_bytes()
    for size in range(kept, len(whole), 7):
        harness.log_path.write_bytes(whole[:size])
        image = ControllerHarness(tmp_path).open().image
        assert set(image.topics_by_name) == {"a"}, f"cut at {size}"


def test_an_unfinished_transaction_is_aborted_at_startup(tmp_path: Path) -> None:
    begin = stored_records.BeginTransactionRecord(name="x")
    harness = harness_with(
        tmp_path,
        batch(METADATA_VERSION, record("a")[0], epoch=1),
        batch(begin, record("b")[0], offset=2),
        batch(record("c")[0], offset=4),
    )
    harness.start()
    assert set(harness.image.topics_by_name) == {"a"}
    assert isinstance(harness.records(since=5)[0], stored_records.AbortTransactionRecord)
    harness.log.close()
    assert set(ControllerHarness(tmp_path).start().image.topics_by_name) == {"a"}


def test_only_records_of_ended_transactions_apply(tmp_path: Path) -> None:
    begin = stored_records.BeginTransactionRecord()
    harness = harness_with(
        tmp_path,
        batch(METADATA_VERSION, begin, record("a")[0], stored_records.EndTransactionRecord()),
        batch(begin, record("b")[0], stored_records.AbortTransactionRecord(), record("c")[0], offset=4),
    )
    opened = harness.open()
    assert set(opened.image.topics_by_name) == {"a", "c"}
    assert not opened.is_in_transaction


def test_the_newest_snapshot_and_the_log_after_it_are_loaded(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    metadata = harness.log_path.parent
    voters = ControllerHarness(tmp_path / "other").open().log.snapshot_control_records(0)
    voters[1][1].voters[0].voter_directory_id = harness.identity.metadata_directory_id  # type: ignore[attr-defined]
    for name, topics in ((SnapshotName(5, 1), ["old"]), (SnapshotName(10, 2), ["a", "b"])):
        records = [(METADATA_VERSION, 0), *(record(t) for t in topics)]
        data = snapshot_of(*records, epoch=name.leader_epoch, control=voters)
        (metadata / str(name)).write_bytes(data)
    (metadata / f"{10:020d}.log").write_bytes(batch(record("c")[0], offset=10, epoch=2))
    (metadata / "00000000000000000011-0000000002.checkpoint.part").write_bytes(b"half")
    harness.start()
    assert set(harness.image.topics_by_name) == {"a", "b", "c"}
    assert harness.node.raft.epoch == 3


def test_the_end_of_a_received_snapshot_is_durable(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    harness.start()
    log, done = harness.log, []
    data = snapshot_of((METADATA_VERSION, 0), epoch=2)
    work = log.snapshots.write_chunk(SnapshotName(49, 2), 0, data, is_last=True)
    work()
    log._start_at_snapshot(SnapshotName(49, 2), WALL_MS, lambda: done.append(log.flushed_offset))
    assert done == [49]
    assert log.end == EpochEnd(2, 49)


def test_the_oldest_snapshot_is_the_one_at_the_log_start(tmp_path: Path) -> None:
    """A received snapshot may have left older ones."""
    harness = ControllerHarness(tmp_path)
    harness.start()
    log = harness.log
    log._log.truncate_fully(49)
    names = (SnapshotName(35, 1), SnapshotName(49, 2), SnapshotName(60, 2))
    log.snapshots.files = [SnapshotFile(name, 1, 0) for name in names]
    assert log.oldest_snapshot == EpochEnd(2, 49)


def test_a_log_that_ends_before_its_snapshot_restarts_at_the_snapshots_end(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, batch(METADATA_VERSION, record("lost")[0]))
    records = [(METADATA_VERSION, 0), record("a")]
    data = snapshot(
        harness.open().log.snapshot_control_records(0),
        records,
        leader_epoch=1,
        timestamp_ms=WALL_MS,
        last_contained_ms=WALL_MS,
    )
    (harness.log_path.parent / str(SnapshotName(10, 1))).write_bytes(data)
    harness.start()
    harness.ask(CreateTopicsRequest(topics=[topic("b")]))
    harness.log.close()
    assert not harness.log_path.exists()
    assert (harness.log_path.parent / f"{10:020d}.log").exists()
    again = ControllerHarness(tmp_path).start()
    assert set(again.image.topics_by_name) == {"a", "b"}


@pytest.mark.parametrize(
    "message", [metadata_version(34), metadata_version(6), stored_records.TopicRecord(name="a", topic_id=b"\x01" * 16)]
)
def test_an_unsupported_metadata_version_is_refused_without_a_change(tmp_path: Path, message: Message) -> None:
    harness = harness_with(tmp_path, batch(message))
    (tmp_path / "bootstrap.checkpoint").write_bytes(snapshot_of((metadata_version(34), 0), epoch=0))
    with pytest.raises(UnreadableMetadata, match="works with 7 to 33"):
        harness.open()
    assert not (harness.log_path.parent / "quorum-state").exists()


# ---- appending -------------------------------------------------------------------------------------------


def test_appends_during_a_flush_share_the_next_flush(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    callbacks = CommitRecorder(harness.lead().log)
    harness.worker.is_held = True
    for name in "abcd":
        callbacks.append(name)
    assert callbacks.seen == []
    assert len(harness.worker.syncs) == 1
    harness.worker.complete_sync()
    assert callbacks.seen == ["a"]
    assert len(harness.worker.syncs) == 1
    harness.worker.complete_sync()
    assert callbacks.seen == ["a", "b", "c", "d"]
    assert not harness.worker.syncs


def test_an_append_made_in_a_callback_is_committed_last(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    log = harness.lead().log
    seen: list[str] = []

    def again() -> None:
        seen.append("a")
        log.append([record("c")], wall_ms=WALL_MS, on_committed=lambda: seen.append("c"))

    harness.worker.is_held = True
    log.append([record("x")], wall_ms=WALL_MS, on_committed=lambda: None)
    log.append([record("a")], wall_ms=WALL_MS, on_committed=again)
    log.append([record("b")], wall_ms=WALL_MS, on_committed=lambda: seen.append("b"))
    harness.worker.is_held = False
    harness.worker.complete_sync()
    assert seen == ["a", "b", "c"]


def test_a_failed_flush_is_not_retried_and_commits_nothing(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    callbacks = CommitRecorder(harness.lead().log)
    failures: list[StorageError] = []
    callbacks.log.on_failed = failures.append
    harness.worker.is_held = True
    callbacks.append("a")
    callbacks.append("b")
    harness.worker.complete_sync(StorageError("sync", "x", OSError(errno.EIO, "Input/output error")))
    assert callbacks.seen == []
    assert callbacks.log.is_failed
    assert len(failures) == 1
    assert not harness.worker.syncs


def test_a_failed_write_stops_the_controller(tmp_path: Path) -> None:
    disk = FaultyDisk()
    harness = ControllerHarness(tmp_path, disk=disk).start()
    failures: list[StorageError] = []
    replies: list[object] = []
    harness.log.on_failed = failures.append
    disk.fail_writes = errno.ENOSPC
    for name in "ab":
        request = CreateTopicsRequest(topics=[topic(name)])
        harness.controller.submit(request, wall_ms=WALL_MS, reply=replies.append)
    assert [failure.errno for failure in failures] == [errno.ENOSPC]
    assert replies == []
    assert not harness.image.topics_by_name


def test_a_non_atomic_append_is_split_at_the_maximum_batch_size(tmp_path: Path) -> None:
    harness = ControllerHarness(tmp_path)
    log = harness.lead().log
    seen: list[str] = []
    many: list[Versioned] = [
        (stored_records.ConfigRecord(resource_type=2, resource_name="t", name=str(i), value="v" * 30_000), 0)
        for i in range(300)
    ]
    first = log.next_offset
    last = log.append(many, wall_ms=WALL_MS, on_committed=lambda: seen.append("all"), is_atomic=False)
    assert seen == ["all"]
    assert last == first + 299
    found = [batch for batch in read_batches(harness.log_path.read_bytes()) if batch.base_offset >= first]
    assert len(found) == 2
    assert max(batch.size for batch in found) <= 8 * 1024 * 1024
    assert [m.name for b in found for m in b.messages] == [str(i) for i in range(300)]  # type: ignore[attr-defined]


# ---- Apache Kafka --------------------------------------------------------------------------------------


@needs_kafka
def test_apache_kafka_s_dump_tool_reads_the_log(tmp_path: Path) -> None:
    """DumpLogSegments --cluster-metadata-decoder reads every record of two starts."""
    harness = ControllerHarness(tmp_path).start()
    harness.ask(CreateTopicsRequest(topics=[topic("a", 3, configs=[("min.insync.replicas", "1")])]))
    harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=0))
    harness.ask(CreateTopicsRequest(topics=[topic("a", 3)]))
    harness.log.close()
    harness = ControllerHarness(tmp_path).start()
    harness.stop_broker()
    harness.log.close()
    dump = run_tool("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", harness.log_path)
    assert dump.returncode == 0, dump.stderr
    payloads = [line for line in dump.stdout.splitlines() if line.startswith("| offset:")]
    assert len(payloads) == sum(len(b.messages) for b in harness.batches())
    assert "isvalid: false" not in dump.stdout
    assert "rror" not in dump.stdout
    for kind in (
        "PARTITION_RECORD",
        "REGISTER_BROKER_RECORD",
        "REMOVE_TOPIC_RECORD",
        "CLEAR_ELR_RECORD",
        "LeaderChange",
    ):
        assert kind in dump.stdout, kind


def test_a_segment_roll_waits_in_the_write_queue(tmp_path: Path) -> None:
    """A full disk delays it and does not stop the node."""
    harness = ControllerHarness(tmp_path).start()
    before = sorted(path.name for path in tmp_path.rglob("*.log"))
    harness.worker.holds_writes = True
    harness.log.roll_segment(WALL_MS, at_least=1)
    assert sorted(path.name for path in tmp_path.rglob("*.log")) == before
    while harness.worker.writes:
        harness.worker.complete_write()
    assert len(list(tmp_path.rglob("*.log"))) == len(before) + 1
    assert not harness.log.is_failed
