"""The rules of `ReplicaManager`, on real logs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from protocol.schema import Message
from replication.metadata.image import ResourceType
from replication.partition.partition import Partition, Reader
from storage.config.log_config import LogConfig
from storage.directories.log_maintenance import logs_to_flush
from storage.io.disk import StorageError
from storage.log.log import Log
from storage.log.log_reader import Isolation, LogReader
from storage.log.log_validator import AppendOrigin
from tests.support.logs import NOW_MS, refused
from tests.support.replica_harness import AppendResults, HeldIoExecutor, ReplicaHarness, batch, produced, read_regions

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)
END = Reader(-3, Isolation.LOG_END, leader_only=False)


@pytest.fixture
def results() -> AppendResults:
    return AppendResults()


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t")
    return made


@pytest.fixture
def worker() -> HeldIoExecutor:
    return HeldIoExecutor()


@pytest.fixture
def held(tmp_path: Path, worker: HeldIoExecutor) -> ReplicaHarness:
    return ReplicaHarness(tmp_path, worker=worker)


def append(
    harness: ReplicaHarness,
    results: AppendResults,
    records: bytearray | None = None,
    *,
    acks: int = -1,
    topic: str = "t",
    index: int = 0,
) -> None:
    results.add(harness.append(topic, index, records, acks=acks))


def size_of_read(harness: ReplicaHarness, reader: Reader = HIGH) -> int:
    info = harness.read(reader)
    assert len(read_regions(info.regions)) == info.size
    return info.size


def follower_fetches(harness: ReplicaHarness, topic: str, offset: int, **options: Any) -> None:
    harness.read(Reader(2, Isolation.LOG_END), topic, offset, **options)


def failures_of(harness: ReplicaHarness) -> list[str]:
    """The failed directories that are reported from now on."""
    failures = []
    harness.replicas.on_directory_failed = lambda directory, error: failures.append(directory)
    return failures


def error_code_of(harness: ReplicaHarness, topic: str = "t", index: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        harness.replicas.find(topic, index)
    return caught.value.code


# ---------------------------------------------------------------- applying images


def test_requests_between_two_steps_of_apply_see_partitions_in_the_old_or_new_state(
    harness: ReplicaHarness, results: AppendResults
) -> None:
    records: list[Message] = [TopicRecord(name="u", topic_id=bytes(15) + b"u")]
    records += [
        PartitionRecord(
            partition_id=index, topic_id=bytes(15) + b"u", replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0,
        )
        for index in range(2)
    ]  # fmt: skip
    image, changes = harness.image.apply(records, offset=10, epoch=1)
    steps = harness.replicas.apply(image, changes, harness.mono_ms)
    next(steps)
    append(harness, results, topic="u", index=0)
    assert error_code_of(harness, "u", 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list(steps) == [None]
    append(harness, results, topic="u", index=1)
    assert results == [(ErrorCode.NONE, 0)] * 2


def test_requests_to_a_recreated_topic_do_not_reach_the_partitions_of_the_old_one(harness: ReplicaHarness) -> None:
    """A node that was paused learns of the deletion and of the creation together."""
    old_id, new_id = harness.create("u", partitions=2), bytes(15) + b"u"
    created = [
        PartitionRecord(
            partition_id=index, topic_id=new_id, replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0
        )
        for index in range(2)
    ]
    records = [RemoveTopicRecord(topic_id=old_id), TopicRecord(name="u", topic_id=new_id), *created]
    harness.image, changes = harness.image.apply(records, offset=10, epoch=1)
    for _ in harness.replicas.apply(harness.image, changes, harness.mono_ms):
        partition = harness.replicas.partitions.get(("u", 1))
        answer = produced(harness.produce("u", 1, version=13))
        is_new = partition is not None and partition.topic_id == new_id
        assert (answer.error_code == ErrorCode.NONE) is is_new
    assert partition is not None
    assert partition.log.log_end_offset == 1


def test_the_image_creates_and_deletes_partitions(harness: ReplicaHarness) -> None:
    harness.create("u", partitions=3)
    assert sorted(harness.replicas.partitions) == [("t", 0), ("u", 0), ("u", 1), ("u", 2)]
    harness.delete("u")
    assert sorted(harness.replicas.partitions) == [("t", 0)]
    assert error_code_of(harness, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_without_a_local_replica_is_not_found(harness: ReplicaHarness) -> None:
    harness.create("u", replicas=(2, 3), leader=2)
    assert error_code_of(harness, "u") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_code_of(harness, "u", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_code_of(harness, "x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.change("t", replicas=[2, 3], isr=[2], leader=2)  # reassigned
    assert error_code_of(harness, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_logs_of_deleted_topics_are_renamed_to_strays_at_startup(tmp_path: Path) -> None:
    """A crash between deletion and renaming leaves them."""
    harness = ReplicaHarness(tmp_path)
    harness.create("t")
    harness.create("u", partitions=2)
    harness.load("t")
    harness.log_manager.shutdown()
    again = ReplicaHarness(tmp_path)
    again.create("t")
    assert sorted(again.replicas.rename_strays()) == ["u-0", "u-1"]
    assert again.replicas.rename_strays() == []
    kept = sorted(path.name for path in (tmp_path / "logs-0").iterdir() if path.is_dir())
    assert kept[0] == "t-0"
    assert [name.endswith("-stray") for name in kept] == [False, True, True]
    assert size_of_read(again) == len(batch())


def test_every_change_of_role_or_epoch_is_reported_once(harness: ReplicaHarness) -> None:
    role_changes = []
    harness.replicas.on_leadership_changed = lambda of: role_changes.append((of.topic, of.is_leader, of.leader_epoch))
    harness.create("u", replicas=(1, 2))
    harness.change("u", isr=[1])
    harness.change("u", leader=2)
    harness.change("u", leader=1)
    harness.delete("u")
    assert role_changes == [("u", True, 0), ("u", False, 1), ("u", True, 2), ("u", False, 2)]


def test_config_changes_reach_the_logs(harness: ReplicaHarness) -> None:
    harness.create("u", max_message_bytes=100)
    assert harness.partition("u").log.config.max_message_bytes == 100
    assert harness.partition("t").log.config.max_message_bytes == 1048588
    results = AppendResults()
    append(harness, results, batch(size=200), topic="u")

    def setting(kind: Any, name: str, key: str, value: str) -> None:
        harness.apply(ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))

    setting(ResourceType.TOPIC, "u", "max.message.bytes", "1000")
    append(harness, results, batch(size=200), topic="u")
    assert results == [(ErrorCode.MESSAGE_TOO_LARGE, None), (ErrorCode.NONE, 0)]
    setting(ResourceType.BROKER, "", "message.max.bytes", "500")
    assert harness.partition("t").log.config.max_message_bytes == 500
    assert harness.partition("u").log.config.max_message_bytes == 1000


def test_configs_that_no_topic_has_any_more_are_not_kept(harness: ReplicaHarness) -> None:
    """Else every change of a topic's config would take memory until a broker's default changes."""
    harness.create("u")
    gc.collect()
    gc.disable()
    try:
        for retention_ms in range(777_001, 777_006):
            setting = {"name": "retention.ms", "value": str(retention_ms)}
            harness.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="u", **setting))
        found = [thing.retention_ms for thing in gc.get_objects() if isinstance(thing, LogConfig)]
        assert [kept for kept in found if kept // 1000 == 777] == [777_005]
    finally:
        gc.enable()


# ---------------------------------------------------------------- appending


def test_an_inline_append_is_readable_and_acknowledged_before_append_returns(
    harness: ReplicaHarness, results: AppendResults
) -> None:
    records = batch(count=3)
    append(harness, results, records)
    append(harness, results, acks=1)
    append(harness, results, acks=0)
    assert results == [(0, 0), (0, 3), (0, 4)]
    assert size_of_read(harness) == len(records) + 2 * len(batch())


def test_pending_appends_are_committed_in_order_and_not_readable_before(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t")
    for _ in range(3):
        append(held, results)
    assert results == []
    assert size_of_read(held, END) == 0
    for number in range(3):
        worker.let_write()
        assert results == [(0, offset) for offset in range(number + 1)]
        assert size_of_read(held) == (number + 1) * len(batch())


def test_a_retried_follower_fetch_is_not_counted_again(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r", batches=2)
    follower_fetches(harness, "r", 2)
    assert harness.partition("r").high_watermark == 0


def test_a_duplicate_batch_is_acknowledged_with_the_original_offset_when_that_is_committed(
    harness: ReplicaHarness, results: AppendResults
) -> None:
    harness.create("r", replicas=(1, 2))
    for sequence in (0, 1, 0):
        made = batch(producer_id=7, producer_epoch=0, base_sequence=sequence)
        append(harness, results, made, topic="r")
    assert results == []
    assert harness.partition("r").log.log_end_offset == 2
    follower_fetches(harness, "r", 1, fetched_mono_ms=0)
    assert results == [(0, 0), (0, 0)]


def test_a_pending_append_to_a_deleted_partition_fails(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t")
    append(held, results)
    held.delete("t")
    held.create("t")
    worker.let_write()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert size_of_read(held, END) == 0


def test_a_pending_append_fails_when_the_leader_loses_its_role(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t", replicas=(1, 2))
    append(held, results, acks=1)
    held.change("t", leader=2)
    worker.let_write()
    append(held, results)
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)] * 2


# ---------------------------------------------------------------- flushing


def test_with_flush_messages_1_records_are_acknowledged_and_readable_only_after_a_flush(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    """One flush covers all records appended while another one runs."""
    held.create("t", flush_messages=1)
    worker.let_sync()  # of its directory entries
    append(held, results, acks=-1)
    worker.let_write()
    assert len(worker.syncs) == 1
    for acks in (1, -1, 1):
        append(held, results, acks=acks)
        worker.let_write()
    assert len(worker.syncs) == 1
    assert results == []
    assert size_of_read(held) == 0
    worker.let_sync()
    assert results == [(0, 0)]
    assert size_of_read(held) == len(batch())
    assert len(worker.syncs) == 1
    worker.let_sync()
    assert sorted(results) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert worker.syncs == []


def alter(harness: ReplicaHarness, name: str, value: str | None) -> None:
    """Change a config of the topic."""
    harness.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value))


def test_flush_messages_changed_at_runtime_applies_from_the_next_append(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t")
    append(held, results)
    worker.let_write()
    assert (results, worker.syncs) == ([(0, 0)], [])
    alter(held, "flush.messages", "1")
    append(held, results)
    worker.let_write()
    assert (len(results), len(worker.syncs)) == (1, 1)
    alter(held, "flush.messages", None)
    assert len(results) == 2
    append(held, results)
    worker.let_write()
    assert len(results) == 3


def test_flush_ms_changed_at_runtime_applies_to_existing_records(
    harness: ReplicaHarness, results: AppendResults
) -> None:
    append(harness, results)
    harness.wall_ms += 10_000
    assert not any(logs_to_flush(harness.log_manager, harness.wall_ms))
    alter(harness, "flush.ms", "100")
    assert [log.name for log in logs_to_flush(harness.log_manager, harness.wall_ms) if log is not None] == ["t-0"]


# ---------------------------------------------------------------- failing


def test_a_failed_write_takes_only_its_directory_offline(
    tmp_path: Path, worker: HeldIoExecutor, results: AppendResults
) -> None:
    harness = ReplicaHarness(tmp_path, worker=worker, directories=2)
    failures = failures_of(harness)
    harness.create("t", partitions=4)
    homes = {index: harness.partition("t", index).log.directory for index in range(4)}
    assert len(set(homes.values())) == 2
    lost = [index for index in homes if homes[index] == homes[0]]
    kept = next(index for index in homes if homes[index] != homes[0])
    append(harness, results)
    append(harness, results)
    worker.let_write(StorageError("write", "x"))
    worker.let_write()
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert failures == [homes[0]]
    for index in lost:
        assert error_code_of(harness, "t", index) == ErrorCode.KAFKA_STORAGE_ERROR
    append(harness, results, index=kept)
    worker.let_write()
    assert results[2:] == [(0, 0)]


def test_a_failed_flush_is_not_retried(held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults) -> None:
    held.create("t", flush_messages=1)
    worker.let_sync()  # of its directory entries
    append(held, results)
    worker.let_write()
    worker.let_sync(StorageError("sync", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    append(held, results)
    assert results[1:] == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert worker.writes == worker.syncs == []


def test_a_failed_directory_fails_waiting_producers(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t", replicas=(1, 2))
    append(held, results)
    worker.let_write()
    append(held, results, acks=1)
    worker.let_write(StorageError("write", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_failed_read_takes_the_directory_offline(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("read", "x")

    monkeypatch.setattr(LogReader, "read", fail)
    refused(ErrorCode.KAFKA_STORAGE_ERROR, lambda: size_of_read(harness))
    assert error_code_of(harness) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_directory_stays_offline_when_the_image_changes(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    held.create("t", replicas=(1, 2))
    append(held, results, acks=1)
    worker.let_write(StorageError("write", "x"))
    held.change("t", leader=1)
    assert error_code_of(held) == ErrorCode.KAFKA_STORAGE_ERROR
    held.delete("t")
    assert error_code_of(held) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_directory_that_the_log_manager_took_offline_fails_waiting_requests_once(
    held: ReplicaHarness, worker: HeldIoExecutor, results: AppendResults
) -> None:
    failures = failures_of(held)
    held.create("t", replicas=(1, 2))
    append(held, results)
    worker.let_write()
    waiting_fetch = held.fetch("t", offset=0, leader_epoch=0)
    home = held.partition().log.directory
    held.log_manager.go_offline(home, StorageError("retain", "x"))
    for _ in range(2):
        held.replicas.check_directories()
        held.drain_purgatory()
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert waiting_fetch.message.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == [home]


@pytest.mark.parametrize(
    "needed", [{"isr": [1, 2]}, {"isr": [2], "eligible_leader_replicas": [1]}, {"isr": [], "last_known_elr": [1]}]
)
def test_a_replica_in_a_missing_directory_is_created_elsewhere_when_its_records_are_not_needed(
    harness: ReplicaHarness, needed: dict[str, Any]
) -> None:
    """They are needed as long as the replica may lead: the directory may return with them."""
    harness.create("u", replicas=(2, 3), leader=2)
    harness.change("u", replicas=[1, 2], directories=[b"?" * 16, b"!" * 16], leader=2, **needed)
    assert error_code_of(harness, "u") == ErrorCode.KAFKA_STORAGE_ERROR
    harness.change("u", isr=[2], eligible_leader_replicas=[], last_known_elr=[])
    assert harness.partition("u").log.log_end_offset == 0


def test_a_log_that_cannot_be_created_takes_its_directory_offline(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, directories=2)
    first = tmp_path / "logs-0"
    (first / "t-0").write_bytes(b"in the way")
    failures = failures_of(harness)
    harness.create("t", partitions=2)
    assert failures == [str(first)]
    assert error_code_of(harness, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    harness.load("t", 1)


def test_a_replica_that_returns_to_a_failed_directory_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log may be there, so it is not created in another directory: a reassignment to this broker does not end."""
    harness = ReplicaHarness(tmp_path, directories=2)
    harness.create("t", replicas=(1, 2))
    directory = harness.partition().log.directory
    harness.replicas.directory_failed(directory, StorageError("write", "x"))
    harness.change("t", replicas=[2], isr=[2], leader=2)
    harness.change("t", replicas=[2, 1])
    assert error_code_of(harness) == ErrorCode.KAFKA_STORAGE_ERROR
    reason = f"Cannot find the log of t-0: {directory} is offline."
    assert caplog.messages == [f"this broker has no replica of t-0: {reason}"]


def test_appends_of_clients_but_not_of_coordinators_are_rejected_while_a_directory_is_full(
    harness: ReplicaHarness, results: AppendResults
) -> None:
    append(harness, results)
    directory = harness.partition().log.directory
    harness.replicas.on_space_changed(directory, has_room=False)
    append(harness, results)
    assert size_of_read(harness) == len(batch())
    results.add(harness.append(origin=AppendOrigin.COORDINATOR))
    harness.replicas.on_space_changed(directory, has_room=True)
    append(harness, results)
    assert results == [(0, 0), (ErrorCode.KAFKA_STORAGE_ERROR, None), (0, 1), (0, 2)]


def test_a_changed_log_start_offset_is_reported_in_fetch_sessions(harness: ReplicaHarness) -> None:
    harness.load("t", batches=3)
    session = harness.fetch("t", offset=3, session=(0, 0), max_wait_ms=0).message.session_id
    assert harness.fetch_all({}, session=(session, 1), max_wait_ms=0).message.responses == []
    harness.partition().log.open().trim(2, harness.wall_ms)
    harness.replicas.on_log_start_changed("t", 0)
    harness.replicas.on_log_start_changed("nowhere", 0)
    (topic,) = harness.fetch_all({}, session=(session, 2), max_wait_ms=0).message.responses
    assert topic.partitions[0].log_start_offset == 2


def test_a_deleted_log_is_in_no_reference_cycle(harness: ReplicaHarness) -> None:
    """A garbage collection pauses the broker."""
    harness.load("t")
    gc.collect()
    gc.disable()
    try:
        harness.create("u", partitions=2)
        harness.delete("u")
        harness.delete("t")
        remaining = [thing for thing in gc.get_objects() if isinstance(thing, Log) and thing.topic in "tu"]
        assert remaining == []
    finally:
        gc.enable()


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_nothing_is_acknowledged_before_all_batches_of_a_request_are_written(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledgement may start an append to a partition whose batch is prepared and not written."""
    harness.replicas.appender.append("t", 0, batch(), acks=1, wall_ms=NOW_MS)  # opens the log
    steps: list[str] = []

    def noted(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            steps.append(step)
            return call(*args)

        return run

    monkeypatch.setattr(harness.worker, "write", noted("write", harness.worker.write))
    monkeypatch.setattr(Partition, "await_acks", noted("acks", Partition.await_acks))
    appends = harness.replicas.appender.append_all([("t", 0, batch()) for _ in range(65)], acks=1, wall_ms=NOW_MS)
    assert [append.value.base_offset for append in appends] == list(range(1, 66))
    assert steps == ["write"] * 2 + ["acks"] * 65


def test_a_lookup_that_fails_leaves_no_garbage(harness: ReplicaHarness) -> None:
    """Nothing that only a garbage collection would free: a request may name many unknown partitions."""

    def attempt(partition: Partition) -> None:
        raise AssertionError

    reference = weakref.ref(attempt)
    gc.disable()
    try:
        lookup = harness.replicas.lookup("t", 9, attempt)
        assert isinstance(lookup.error, KafkaError)
        assert lookup.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        del lookup, attempt
        assert reference() is None
    finally:
        gc.enable()
