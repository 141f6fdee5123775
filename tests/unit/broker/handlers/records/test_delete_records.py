"""DeleteRecords, on real logs."""

from __future__ import annotations

import gc
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.records.delete_records import DeleteRecordsHandler
from broker.security.authorizer import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.logs import DeleteRecordsRequest, DeleteRecordsResponse
from storage.directories.log_maintenance import due_deletions
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk, StorageError
from storage.log.open_log import OpenLog
from storage.segments.segment_engine import SegmentEngine
from tests.support.deny import Deny
from tests.support.logs import write_checkpoint
from tests.support.messages import message
from tests.support.replica_harness import Answer, HeldIoExecutor, ReplicaHarness, fetched

HIGH_WATERMARK = -1
E = ErrorCode
Row = tuple[str, int, int, ErrorCode]


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path)


def delete(harness: ReplicaHarness, *offsets: tuple[str, int, int], timeout_ms: int = 1000, version: int = 2) -> Answer:
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "offset": offset} for _, index, offset in group]}
        for name, group in groupby(offsets, key=itemgetter(0))
    ]
    handler = DeleteRecordsHandler(harness.replicas, harness.purgatory, harness.authorizer)
    request = message(DeleteRecordsRequest, topics=topics, timeout_ms=timeout_ms)
    return Answer(handler.handle(harness.context(21, version), request), DeleteRecordsResponse, version)


def rows(answer: Answer) -> list[Row]:
    """(topic, partition, low watermark, error code) of a response."""
    assert answer.is_done, "not answered yet"
    return [
        (topic.name, partition.partition_index, partition.low_watermark, ErrorCode(partition.error_code))
        for topic in answer.message.topics
        for partition in topic.partitions
    ]


def follow(harness: ReplicaHarness, replica: int, offset: int, log_start_offset: int) -> None:
    """A follower has all records below `offset`; its log starts at `log_start_offset`."""
    harness.fetch(offset=offset, replica=replica, max_wait_ms=0, log_start_offset=log_start_offset)
    harness.drain_purgatory()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records_returns_the_new_log_start_offset(harness: ReplicaHarness, version: int) -> None:
    harness.create()
    harness.load(batches=5)
    assert rows(delete(harness, ("t", 0, 3), version=version)) == [("t", 0, 3, E.NONE)]
    assert fetched(harness.fetch(offset=2)).error_code == E.OFFSET_OUT_OF_RANGE
    data = fetched(harness.fetch(offset=3))
    assert (data.error_code, data.log_start_offset) == (E.NONE, 3)


def test_minus_one_is_the_high_watermark(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.load(batches=3)
    follow(harness, 2, 2, 0)
    delete(harness, ("t", 0, HIGH_WATERMARK))
    assert harness.partition().log.log_start_offset == 2


def test_each_invalid_partition_has_an_error_of_its_own(harness: ReplicaHarness) -> None:
    harness.create("t", 2)
    harness.create("compacted", cleanup_policy="compact")
    harness.create("both", cleanup_policy="compact,delete")
    harness.create("elsewhere", replicas=(1, 2), leader=2)
    harness.create("remote", replicas=(2,), leader=2)
    harness.create("__consumer_offsets", cleanup_policy="compact")
    harness.load("t", 0, 2)
    answer = delete(
        harness, ("t", 0, 3), ("t", 1, -2), ("t", 7, 0), ("nope", 0, 0), ("compacted", 0, 0), ("both", 0, 0),
        ("elsewhere", 0, 0), ("remote", 0, 0), ("__consumer_offsets", 0, 0), ("__transaction_state", 0, 0),
    )  # fmt: skip
    assert rows(answer) == [
        ("t", 0, -1, E.OFFSET_OUT_OF_RANGE),
        ("t", 1, -1, E.OFFSET_OUT_OF_RANGE),
        ("t", 7, -1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", 0, -1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("compacted", 0, -1, E.POLICY_VIOLATION),
        ("both", 0, 0, E.NONE),
        ("elsewhere", 0, -1, E.NOT_LEADER_OR_FOLLOWER),
        ("remote", 0, -1, E.NOT_LEADER_OR_FOLLOWER),
        ("__consumer_offsets", 0, -1, E.INVALID_TOPIC_EXCEPTION),
        ("__transaction_state", 0, -1, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_unauthorized_delete_records_deletes_nothing(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.DELETE, Resource.TOPIC, "t")))
    harness.create("t")
    harness.create("u")
    harness.load("t")
    assert rows(delete(harness, ("t", 0, 1), ("u", 0, 0))) == [
        ("t", 0, -1, E.TOPIC_AUTHORIZATION_FAILED), ("u", 0, 0, E.NONE),
    ]  # fmt: skip
    assert harness.partition("t").log.log_start_offset == 0


def test_a_repeated_partition_is_answered_once(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=5)
    assert rows(delete(harness, ("t", 0, 4), ("t", 0, 2))) == [("t", 0, 2, E.NONE)]


# ---- waiting ---------------------------------------------------------------------------------------------


def test_the_response_waits_for_live_followers(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.load(batches=4)
    follow(harness, 2, 4, 0)
    answer = delete(harness, ("t", 0, 3))
    assert not answer.is_done
    follow(harness, 2, 4, 2)
    assert not answer.is_done
    follow(harness, 2, 4, 3)
    assert rows(answer) == [("t", 0, 3, E.NONE)]
    assert len(harness.purgatory) == 0


def test_fenced_followers_are_not_waited_for(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2), isr=(1,))
    harness.load(batches=4)
    harness.apply(harness._broker(2, fenced=True))
    assert rows(delete(harness, ("t", 0, 3))) == [("t", 0, 3, E.NONE)]


def test_after_the_timeout_records_are_deleted_on_the_leader_only(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.create("alone")
    harness.load(batches=4)
    follow(harness, 2, 4, 1)
    answer = delete(harness, ("t", 0, 3), ("alone", 0, 0), timeout_ms=500)
    harness.pass_time(499)
    assert not answer.is_done
    harness.pass_time(1)
    assert rows(answer) == [("t", 0, 1, E.REQUEST_TIMED_OUT), ("alone", 0, 0, E.NONE)]
    assert harness.partition().log.log_start_offset == 3


def test_lost_leadership_fails_a_waiting_delete(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.load(batches=4)
    follow(harness, 2, 4, 0)
    answer = delete(harness, ("t", 0, 3))
    harness.change(leader=2)
    harness.drain_purgatory()
    assert rows(answer) == [("t", 0, -1, E.NOT_LEADER_OR_FOLLOWER)]


def test_a_closed_connection_frees_its_client_instance(harness: ReplicaHarness) -> None:
    harness.create(replicas=(1, 2))
    harness.load(batches=4)
    follow(harness, 2, 4, 0)
    answer = delete(harness, ("t", 0, 3))
    assert answer.pending is not None
    answer.pending.cancel()
    assert len(harness.purgatory) == 0


def test_a_new_log_start_offset_completes_waiting_fetches(harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=4)
    reader = harness.fetch_all({("t", 0): 4}, session=(0, 0), max_wait_ms=0)
    session = reader.message.session_id
    waiting = harness.fetch_all({}, session=(session, 1), max_wait_ms=10_000)
    assert not waiting.is_done
    delete(harness, ("t", 0, 3))
    harness.drain_purgatory()
    harness.pass_time(10_000)
    assert fetched(waiting).log_start_offset == 3


# ---- the disk --------------------------------------------------------------------------------------------


def test_a_closed_log_is_opened_by_a_thread(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create()
    worker.holds_reads = True
    answer = delete(harness, ("t", 0, 0))
    assert not answer.is_done
    worker.let_read()
    harness.drain_purgatory()
    assert rows(answer) == [("t", 0, 0, E.NONE)]


def _segment_engines() -> int:
    """How many exist; the compiled class has no weak references."""
    return sum(type(found) is SegmentEngine for found in gc.get_objects())


def test_a_refused_deletion_keeps_nothing_of_a_topic_that_is_deleted(tmp_path: Path) -> None:
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create()
    worker.holds_reads = True
    gc.disable()
    try:
        answer = delete(harness, ("t", 0, 1))  # the first use of the log: a reader thread opens it
        worker.let_read()
        harness.drain_purgatory()
        assert rows(answer) == [("t", 0, -1, E.OFFSET_OUT_OF_RANGE)]
        assert isinstance(harness.partition().log.open().engine, SegmentEngine)
        engines = _segment_engines()
        harness.delete()
        assert _segment_engines() == engines - 1
    finally:
        gc.enable()


def test_a_waiting_delete_does_not_open_a_log_that_was_closed(tmp_path: Path) -> None:
    """At the limit of open files an idle log is closed; here a thread opens it again for a timestamp."""
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create(replicas=(1, 2))
    partition = harness.partition()
    answer = delete(harness, ("t", 0, 0))
    assert not answer.is_done
    partition.log.close()
    worker.holds_reads = True
    harness.replicas.lookup("t", 0, lambda found: found.timestamp_at(0))
    harness.purgatory.wake(partition.key)
    harness.drain_purgatory()
    assert (answer.is_done, len(worker.reads)) == (False, 1)
    worker.let_read()
    follow(harness, 2, 0, 0)
    assert rows(answer) == [("t", 0, 0, E.NONE)]


def test_a_failed_disk_is_a_storage_error(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create()
    harness.load(batches=2)

    def fail(*_: Any) -> None:
        raise StorageError("rename", "x", OSError(5, "Input/output error"))

    monkeypatch.setattr(OpenLog, "trim", fail)
    assert rows(delete(harness, ("t", 0, 1))) == [("t", 0, -1, E.KAFKA_STORAGE_ERROR)]
    assert harness.partition().is_offline


def test_the_log_start_offset_survives_an_unclean_restart(tmp_path: Path, harness: ReplicaHarness) -> None:
    harness.create()
    harness.load(batches=5)
    delete(harness, ("t", 0, 3))
    write_checkpoint(harness.log_manager)
    directories = {str(tmp_path / "logs-0"): bytes(16)}
    again = LogManager(Disk(), directories, harness.partition().log.config, random_bytes=bytes)
    again.load()
    log = again.logs["t", 0]
    assert log.needs_recovery
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)


def test_segments_below_the_log_start_offset_are_deleted_later(harness: ReplicaHarness) -> None:
    harness.create(internal_segment_bytes=1000, file_delete_delay_ms=1000)
    harness.load(batches=5, size=900)
    log = harness.partition().log
    delete(harness, ("t", 0, HIGH_WATERMARK))
    files = {path.name for path in Path(log.path).iterdir()}
    assert sorted(name[19] for name in files if name.endswith(".log")) == ["4"]
    assert sorted(name[19] for name in files if name.endswith(".log.deleted")) == ["0", "1", "2", "3"]
    for _, work in due_deletions(harness.log_manager, harness.wall_ms + 1000):
        work()
    assert not list(Path(log.path).glob("*.deleted"))
