"""The rules of `MetadataLog`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.messages import stored_records
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from replication.completion import Completion
from replication.cooperative_tasks import no_op
from replication.metadata.image import ResourceType
from replication.metadata.metadata_records import (
    ZERO_SNAPSHOT,
    SnapshotName,
    Versioned,
    control_records,
    read_batches,
)
from replication.metadata_log import raft_wire
from replication.metadata_log.control_state import to_record, voter_records
from replication.metadata_log.formatting import FINALIZED_FEATURES
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.node_identity import BOOTSTRAP_CHECKPOINT
from replication.metadata_log.quorum_state_store import read_quorum_state
from replication.metadata_log.snapshot_files import SnapshotFile
from replication.raft.events import AppendBatches, AppendVoters, BecomeLeader
from replication.raft.raft_log import EpochEnd
from replication.raft.rpc_messages import Fetch
from replication.raft.voters import ReplicaKey
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.io.disk import StorageError
from tests.support.controller_harness import CLUSTER_ID, CONTROLLER, WALL_MS, ControllerHarness
from tests.support.faulty_disk import FaultyDisk
from tests.support.kafka import needs_kafka, run_tool
from tests.support.loading import topic
from tests.support.metadata_histories import METADATA_VERSION, batch, snapshot_of, topic_record
from tests.unit.replication.kafka_bytes import METADATA_LOG


def record(name: str) -> Versioned:
    return topic_record(name), 0


def harness_with(path: Path, *batches: bytes | bytearray) -> ControllerHarness:
    """A formatted directory whose metadata log holds these batches."""
    harness = ControllerHarness(path)
    harness.log_path.write_bytes(b"".join(batches))
    return harness


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
        assert harness.node.raft.state.epoch == epoch
        harness.log.close()
    harness = ControllerHarness(tmp_path)
    harness.worker.holds_writes = True
    harness.lead()  # the process ends before it has written anything
    assert harness.node.raft.state.epoch == 3
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
    assert ControllerHarness(tmp_path).start().node.raft.state.epoch == 2


def test_a_metadata_log_of_apache_kafka_is_replayed(tmp_path: Path) -> None:
    image = ControllerHarness(tmp_path).use_log(METADATA_LOG).open().image
    assert set(image.topics_by_name) == {"t1", "t2"}
    t2 = image.topics_by_name["t2"]
    assert list(t2.partitions) == [0, 1, 2, 3]
    assert t2.partitions[3].eligible_leaders == (1,)
    assert t2.partitions[3].leader == -1
    assert image.features == dict(FINALIZED_FEATURES)
    assert image.configs[ResourceType.BROKER, "1"] == {"log.retention.ms": "600000"}
    assert image.topic_config("t2") == {"cleanup.policy": "delete", "min.insync.replicas": "1"}
    assert image.next_producer_id == 1000
    assert image.brokers[1].is_fenced
    assert image.controllers[1].endpoints[0].port == 27101
    assert (image.leader_id, image.epoch) == (1, 1)


def test_appends_get_offsets_at_once_and_are_written_and_committed_in_order_later(harness: ControllerHarness) -> None:
    """So a slow directory does not block the caller."""
    callbacks, offset, size = CommitRecorder(harness.log), harness.log.next_offset, harness.log_path.stat().st_size
    harness.worker.holds_writes = True
    for name in ("a", "b"):
        callbacks.append(name)
    assert harness.log.next_offset == offset + 2
    assert harness.log_path.stat().st_size == size
    for seen in (["a"], ["a", "b"]):
        harness.worker.let_write()
        assert callbacks.seen == seen


def test_a_truncation_waits_for_pending_file_operations(harness: ControllerHarness) -> None:
    log, held, cut = harness.log, list[Callable[[], None]](), list[int]()
    end = log.end.offset
    log._log.files.submit_op(lambda: None, held.append)
    harness.worker.holds_writes = True
    log.truncate(end - 1).then(lambda _: cut.append(log.end.offset))
    assert cut == []
    held.pop()()
    harness.worker.holds_reads = True
    harness.worker.let_write()
    assert cut == []
    assert (log.is_truncating, log.read(0, 1000)) == (True, b"")
    harness.worker.let_read()
    assert cut == [log.end.offset]
    assert log.end.offset < end, "at the start of the batch"


def test_a_replica_elected_again_leads_when_its_earlier_appends_are_written(harness: ControllerHarness) -> None:
    """They may wait for disk space longer than an election takes."""
    epoch, quorum = harness.node.raft.state.epoch, harness.node.quorum
    harness.worker.holds_writes = True
    CommitRecorder(harness.log).append("late")
    quorum.resign()
    for _ in range(20):
        harness.wait(1_000)
    assert harness.node.raft.state.epoch > epoch
    assert not quorum.is_leading
    assert not harness.controller.is_active
    harness.worker.holds_writes = False
    harness.worker.let_write()
    assert quorum.is_leading
    assert "late" in harness.image.topics_by_name


def test_an_epoch_ends_where_the_next_one_starts_before_its_first_record_is_written(harness: ControllerHarness) -> None:
    log, before = harness.log, harness.log.end
    harness.worker.holds_writes = True
    log.begin_epoch(BecomeLeader(before.epoch + 4, [1]), 1, WALL_MS, lambda: None)
    after = log.end

    def look() -> None:
        assert log.end_of_epoch(before.epoch) == log.end_of_epoch(before.epoch + 3) == before
        assert log.end_of_epoch(before.epoch + 4) == log.end_of_epoch(before.epoch + 9) == after

    look()
    harness.worker.let_write()
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
        batch(METADATA_VERSION, topic_record("a")),
        batch(begin, topic_record("b"), offset=2),
        batch(topic_record("c"), offset=4),
    )
    harness.start()
    assert set(harness.image.topics_by_name) == {"a"}
    assert isinstance(harness.records(since=5)[0], stored_records.AbortTransactionRecord)
    assert set(harness.restart().image.topics_by_name) == {"a"}


def test_only_records_of_ended_transactions_apply(tmp_path: Path) -> None:
    begin = stored_records.BeginTransactionRecord()
    harness = harness_with(
        tmp_path,
        batch(METADATA_VERSION, begin, topic_record("a"), stored_records.EndTransactionRecord()),
        batch(begin, topic_record("b"), stored_records.AbortTransactionRecord(), topic_record("c"), offset=4),
    )
    opened = harness.open()
    assert set(opened.image.topics_by_name) == {"a", "c"}
    assert not opened.is_in_transaction


def test_the_end_of_a_received_snapshot_is_durable(harness: ControllerHarness) -> None:
    log, done = harness.log, list[int]()
    loaded: Completion[None] = Completion()
    loaded.then(lambda _: done.append(log.flushed_offset))
    data = snapshot_of(METADATA_VERSION, epoch=2)
    work = log.snapshots.write_chunks(SnapshotName(49, 2), 0, [data], is_last=True)
    work()
    log._start_at_snapshot(SnapshotName(49, 2), WALL_MS, loaded)
    assert done == [49]
    assert log.end == EpochEnd(2, 49)


def test_a_received_snapshot_replaces_uncommitted_voters_behind_its_end(harness: ControllerHarness) -> None:
    """Of a leader that was cut off from the others, and has more records than their snapshot."""
    log = harness.log
    committed = log.voters.latest
    (voter,) = committed
    while log.next_offset < 60:
        log.append([(topic_record(f"lost-{log.next_offset}"), 0)], wall_ms=WALL_MS, on_committed=no_op)
    log.append_voters(AppendVoters(1, committed.with_voter(voter._replace(addresses=(CONTROLLER,) * 2))), WALL_MS)
    assert log.voters.latest_offset == 60
    data = snapshot_of(METADATA_VERSION, epoch=2, control=log.snapshot_control_records(49))
    log.snapshots.write_chunks(SnapshotName(49, 2), 0, [data], is_last=True)()
    log._start_at_snapshot(SnapshotName(49, 2), WALL_MS, Completion())
    assert (log.end, log.voters.latest) == (EpochEnd(2, 49), committed)
    again = control_records(voter_records(to_record(committed)), base_offset=49, leader_epoch=2, timestamp_ms=WALL_MS)
    log.append_fetched(AppendBatches(again, 2), WALL_MS)
    assert (log.end, log.voters.latest_offset) == (EpochEnd(2, 51), 50)


def test_the_oldest_snapshot_is_the_one_at_the_log_start(harness: ControllerHarness) -> None:
    """A received snapshot may have left older ones."""
    log = harness.log
    log._log.open().truncate_fully(49)
    names = (SnapshotName(35, 1), SnapshotName(49, 2), SnapshotName(60, 2))
    log.snapshots.files = [SnapshotFile(name, 1, 0) for name in names]
    assert log.oldest_snapshot == EpochEnd(2, 49)


def test_a_log_that_ends_before_its_snapshot_restarts_at_the_snapshots_end(tmp_path: Path) -> None:
    harness = harness_with(tmp_path, batch(METADATA_VERSION, topic_record("lost")))
    control = harness.open().log.snapshot_control_records(0)
    data = snapshot_of(METADATA_VERSION, topic_record("a"), epoch=1, control=control)
    (harness.log_path.parent / str(SnapshotName(10, 1))).write_bytes(data)
    harness.start()
    harness.ask(CreateTopicsRequest(topics=[topic("b")]))
    harness.log.close()
    assert not harness.log_path.exists()
    assert (harness.log_path.parent / f"{10:020d}.log").exists()
    again = ControllerHarness(tmp_path).start()
    assert set(again.image.topics_by_name) == {"a", "b"}


def test_records_of_another_history_than_the_snapshots_are_dropped(tmp_path: Path) -> None:
    """The node was killed between a snapshot of the leader and the truncation of its own log, which is longer."""
    harness = harness_with(tmp_path, batch(METADATA_VERSION), batch(topic_record("a"), topic_record("lost"), offset=1))
    control = harness.open().log.snapshot_control_records(0)
    data = snapshot_of(METADATA_VERSION, topic_record("a"), epoch=2, control=control)
    (harness.log_path.parent / str(SnapshotName(2, 2))).write_bytes(data)
    opened = ControllerHarness(tmp_path).open()
    assert (opened.log.end, opened.log.start_offset) == (EpochEnd(2, 2), 2)
    assert set(opened.image.topics_by_name) == {"a"}


# ---- appending -------------------------------------------------------------------------------------------


def test_appends_during_a_flush_share_the_next_flush(harness: ControllerHarness) -> None:
    callbacks = CommitRecorder(harness.log)
    harness.worker.is_held = True
    for name in "abcd":
        callbacks.append(name)
    assert callbacks.seen == []
    assert len(harness.worker.syncs) == 1
    harness.worker.let_sync()
    assert callbacks.seen == ["a"]
    assert len(harness.worker.syncs) == 1
    harness.worker.let_sync()
    assert callbacks.seen == ["a", "b", "c", "d"]
    assert not harness.worker.syncs


def test_an_append_made_in_a_callback_is_committed_last(harness: ControllerHarness) -> None:
    callbacks = CommitRecorder(harness.log)
    harness.worker.is_held = True
    callbacks.append("x")
    harness.log.append([record("a")], wall_ms=WALL_MS, on_committed=lambda: callbacks.append("c"))
    callbacks.append("b")
    harness.worker.is_held = False
    harness.worker.let_sync()
    assert callbacks.seen == ["x", "b", "c"]


def test_a_failed_flush_is_not_retried_and_commits_nothing(harness: ControllerHarness) -> None:
    callbacks = CommitRecorder(harness.log)
    failures: list[StorageError] = []
    callbacks.log.on_failed = failures.append
    harness.worker.is_held = True
    callbacks.append("a")
    callbacks.append("b")
    harness.worker.let_sync(StorageError("sync", "x", OSError(errno.EIO, "Input/output error")))
    assert callbacks.seen == []
    assert callbacks.log.is_failed
    assert len(failures) == 1
    assert not harness.worker.syncs


def test_a_failed_write_stops_the_controller(tmp_path: Path) -> None:
    disk = FaultyDisk()
    harness = ControllerHarness(tmp_path, disk=disk).start()
    failures: list[StorageError] = []
    harness.log.on_failed = failures.append
    disk.fail_writes = errno.ENOSPC
    responses = [harness.controller.submit(CreateTopicsRequest(topics=[topic(name)])) for name in "ab"]
    assert [failure.errno for failure in failures] == [errno.ENOSPC]
    assert not any(response.is_done for response in responses)
    assert not harness.image.topics_by_name


def test_a_non_atomic_append_is_split_at_the_maximum_batch_size(harness: ControllerHarness) -> None:
    log = harness.log
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
def test_apache_kafka_s_dump_tool_reads_the_log_and_the_checkpoints(tmp_path: Path, harness: ControllerHarness) -> None:
    """DumpLogSegments --cluster-metadata-decoder reads every record of two starts, and those of a formatted directory."""
    harness.ask(CreateTopicsRequest(topics=[topic("a", 3, configs=[("min.insync.replicas", "1")])]))
    harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=0))
    harness.ask(CreateTopicsRequest(topics=[topic("a", 3)]))
    harness = harness.restart()
    harness.stop_broker()
    harness.log.close()
    files = [harness.log_path, harness.log_path.parent / str(ZERO_SNAPSHOT), tmp_path / BOOTSTRAP_CHECKPOINT]
    dump = run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", ",".join(map(str, files))
    )
    assert dump.returncode == 0, dump.stderr
    payloads = [line for line in dump.stdout.splitlines() if line.startswith("| offset:")]
    assert len(payloads) == sum(len(b.messages) for file in files for b in read_batches(file.read_bytes()))
    assert "isvalid: false" not in dump.stdout
    assert "rror" not in dump.stdout
    for kind in ("PARTITION", "REGISTER_BROKER", "REMOVE_TOPIC", "CLEAR_ELR"):
        assert f"{kind}_RECORD" in dump.stdout
    for text in (
        "LeaderChange",
        'KRaftVoters {"version":0,"voters":[{"voterId":1',
        '"name":"metadata.version","featureLevel":30',
    ):
        assert text in dump.stdout


def test_a_segment_roll_waits_in_the_write_queue(tmp_path: Path, harness: ControllerHarness) -> None:
    """A full disk delays it and does not stop the node."""
    before = sorted(path.name for path in tmp_path.rglob("*.log"))
    harness.worker.holds_writes = True
    harness.log.roll_segment(WALL_MS, at_least=1)
    assert sorted(path.name for path in tmp_path.rglob("*.log")) == before
    while harness.worker.writes:
        harness.worker.let_write()
    assert len(list(tmp_path.rglob("*.log"))) == len(before) + 1
    assert not harness.log.is_failed


def test_a_fetch_of_old_records_is_read_in_a_thread(harness: ControllerHarness) -> None:
    log, quorum = harness.log, harness.node.quorum
    observer = ReplicaKey(9, b"9" * 16)
    epoch = harness.node.raft.state.epoch

    def fetch() -> Completion[Any]:
        request = Fetch(observer, epoch, EpochEnd(log.end_of_epoch(epoch).epoch, log.end.offset - 1), -1, 0)
        return quorum.handle_request(raft_wire.encode_request(request, CLUSTER_ID))

    harness.worker.holds_reads = True
    assert fetch().is_done, "what was written just now is in memory"
    log._recent.clear()
    waiting: Completion[Any] = fetch()
    assert not waiting.is_done
    harness.worker.let_read()
    assert waiting.result().responses[0].partitions[0].records
