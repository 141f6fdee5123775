"""The rules of `ReplicaManager`, on real logs."""

from __future__ import annotations

import gc

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_records import ConfigRecord, PartitionRecord, TopicRecord
from protocol.records import BatchBuilder
from replication.metadata.image import ResourceType
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import Reader
from storage.io.disk import StorageError
from storage.log.log import Isolation, Log
from storage.log.log_validator import AppendOrigin, RejectedRecords
from tests.support.faulty_disk import FaultyDisk
from tests.support.replica_harness import (
    AppendResults,
    HeldIoExecutor,
    ReplicaHarness,
    batch,
    read_regions,
    with_disk_reads,
)

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)
END = Reader(-3, Isolation.LOG_END, leader_only=False)


@pytest.fixture
def results() -> AppendResults:
    return AppendResults()


@pytest.fixture
def world(tmp_path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t")
    return made


@pytest.fixture
def held(tmp_path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path, worker=HeldIoExecutor())


def append(world, results, records=None, *, acks=-1, topic="t", index=0):
    world.replicas.append(
        topic, index, batch() if records is None else records, acks=acks, wall_ms=world.wall_ms, done=results.add
    )


def size_of_read(world, reader=HIGH, offset=0):
    info = with_disk_reads(
        lambda: world.replicas.read("t", 0, FetchPosition(offset), 1 << 20, reader, min_one_batch=True)
    )
    assert len(read_regions(info.regions)) == info.size
    return info.size


def error_code_of(world, topic="t", index=0):
    with pytest.raises(KafkaError) as caught:
        world.replicas.find(topic, index)
    return caught.value.code


# ---------------------------------------------------------------- applying images


def test_requests_between_two_steps_of_apply_see_partitions_in_the_old_or_new_state(world, results):
    records = [TopicRecord(name="u", topic_id=bytes(15) + b"u")]
    records += [
        PartitionRecord(
            partition_id=index, topic_id=bytes(15) + b"u", replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0,
        )
        for index in range(2)
    ]  # fmt: skip
    image, changes = world.image.apply(records, offset=10, epoch=1)
    steps = world.replicas.apply(image, changes, world.mono_ms)
    next(steps)
    append(world, results, topic="u", index=0)
    assert error_code_of(world, "u", 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list(steps) == [None]
    append(world, results, topic="u", index=1)
    assert results == [(ErrorCode.NONE, 0)] * 2


def test_the_image_creates_and_deletes_partitions(world):
    world.create("u", partitions=3)
    assert sorted(world.replicas.partitions) == [("t", 0), ("u", 0), ("u", 1), ("u", 2)]
    world.delete("u")
    assert sorted(world.replicas.partitions) == [("t", 0)]
    assert error_code_of(world, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_recreated_topic_starts_empty(world):
    world.load("t", batches=3)
    old = world.partition().topic_id
    world.delete("t")
    world.create("t")
    assert world.partition().topic_id != old
    assert size_of_read(world) == 0


def test_a_partition_without_a_local_replica_is_not_found(world):
    world.create("u", replicas=(2, 3), leader=2)
    assert error_code_of(world, "u") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_code_of(world, "u", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_code_of(world, "x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reassigned_partition_is_removed(world):
    world.change("t", replicas=[2, 3], isr=[2], leader=2)
    assert error_code_of(world, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_logs_of_deleted_topics_are_renamed_to_strays_at_startup(tmp_path):
    """A crash between deletion and renaming leaves them."""
    world = ReplicaHarness(tmp_path)
    world.create("t")
    world.create("u", partitions=2)
    world.load("t")
    world.log_manager.shutdown()
    again = ReplicaHarness(tmp_path)
    again.create("t")
    assert sorted(again.replicas.rename_strays()) == ["u-0", "u-1"]
    assert again.replicas.rename_strays() == []
    kept = sorted(path.name for path in (tmp_path / "logs-0").iterdir() if path.is_dir())
    assert kept[0] == "t-0"
    assert [name.endswith("-stray") for name in kept] == [False, True, True]
    assert size_of_read(again) == len(batch())


def test_every_change_of_role_or_epoch_is_reported_once(world):
    role_changes = []
    world.replicas.on_leadership_changed = lambda of: role_changes.append((of.topic, of.is_leader, of.leader_epoch))
    world.create("u", replicas=(1, 2))
    world.change("u", isr=[1])
    world.change("u", leader=2)
    world.change("u", leader=1)
    world.delete("u")
    assert role_changes == [("u", True, 0), ("u", False, 1), ("u", True, 2), ("u", False, 2)]


def test_config_changes_reach_the_logs(world):
    world.create("u", max_message_bytes=100)
    assert world.partition("u").log.config.max_message_bytes == 100
    assert world.partition("t").log.config.max_message_bytes == 1048588
    results = AppendResults()
    append(world, results, batch(size=200), topic="u")

    def setting(kind, name, key, value):
        world.apply(ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))

    setting(ResourceType.TOPIC, "u", "max.message.bytes", "1000")
    append(world, results, batch(size=200), topic="u")
    assert results == [(ErrorCode.MESSAGE_TOO_LARGE, None), (ErrorCode.NONE, 0)]
    setting(ResourceType.BROKER, "", "message.max.bytes", "500")
    assert world.partition("t").log.config.max_message_bytes == 500
    assert world.partition("u").log.config.max_message_bytes == 1000


# ---------------------------------------------------------------- appending


def test_an_inline_append_is_readable_and_acknowledged_before_append_returns(world, results):
    records = batch(count=3)
    append(world, results, records)
    append(world, results, acks=1)
    append(world, results, acks=0)
    assert results == [(0, 0), (0, 3), (0, 4)]
    assert size_of_read(world) == len(records) + 2 * len(batch())


def test_rejected_records_are_reported_with_their_indexes(world, results):
    world.create("c", cleanup_policy="compact")
    builder = BatchBuilder()
    builder.append(world.wall_ms, b"k", b"v")
    builder.append(world.wall_ms, None, b"v")
    outcomes = []
    world.replicas.append(
        "c", 0, builder.build(), acks=1, wall_ms=world.wall_ms, done=lambda *result: outcomes.append(result)
    )
    ((code, info, error),) = outcomes
    assert (code, info) == (ErrorCode.INVALID_RECORD, None)
    assert isinstance(error, RejectedRecords)
    assert [index for index, _ in error.record_errors] == [1]


def test_pending_appends_are_committed_in_order_and_not_readable_before(held, results):
    world, worker = held, held.worker
    world.create("t")
    for _ in range(3):
        append(world, results)
    assert results == []
    assert size_of_read(world, END) == 0
    worker.let_write()
    assert results == [(0, 0)]
    assert size_of_read(world) == len(batch())
    worker.let_write()
    worker.let_write()
    assert results == [(0, 0), (0, 1), (0, 2)]
    assert size_of_read(world) == 3 * len(batch())


def test_acks_all_waits_for_a_followers_fetch(world, results):
    world.create("r", replicas=(1, 2))
    append(world, results, topic="r")
    append(world, results, topic="r", acks=1)
    assert results == [(0, 1)]
    follower = Reader(2, Isolation.LOG_END, broker_epoch=102)
    position = FetchPosition(1, 0)
    with_disk_reads(
        lambda: world.replicas.read("r", 0, position, 1000, follower, min_one_batch=True, fetched_mono_ms=5)
    )
    assert results == [(0, 1), (0, 0)]
    assert world.partition("r").high_watermark == 1


def test_a_retried_follower_fetch_is_not_counted_again(world):
    world.create("r", replicas=(1, 2))
    world.load("r", batches=2)
    follower = Reader(2, Isolation.LOG_END)
    with_disk_reads(lambda: world.replicas.read("r", 0, FetchPosition(2), 1000, follower, min_one_batch=True))
    assert world.partition("r").high_watermark == 0


def test_a_duplicate_batch_is_acknowledged_with_the_original_offset_when_that_is_committed(tmp_path, results):
    world = ReplicaHarness(tmp_path)
    world.create("t", replicas=(1, 2))
    batches = [batch(producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in (0, 1)]
    again = bytearray(batches[0])
    for records in batches:
        append(world, results, records)
    append(world, results, again)
    assert results == []
    assert world.partition().log.log_end_offset == 2
    follower = Reader(2, Isolation.LOG_END)
    with_disk_reads(
        lambda: world.replicas.read("t", 0, FetchPosition(1), 1000, follower, min_one_batch=True, fetched_mono_ms=0)
    )
    assert results == [(0, 0), (0, 0)]


def test_a_pending_append_to_a_deleted_partition_fails(held, results):
    world, worker = held, held.worker
    world.create("t")
    append(world, results)
    world.delete("t")
    world.create("t")
    worker.let_write()
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert size_of_read(world, END) == 0


def test_a_pending_append_fails_when_the_leader_loses_its_role(held, results):
    world, worker = held, held.worker
    world.create("t", replicas=(1, 2))
    append(world, results, acks=1)
    world.change("t", leader=2)
    worker.let_write()
    append(world, results)
    assert results == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)] * 2


# ---------------------------------------------------------------- flushing


def test_with_flush_messages_1_records_are_acknowledged_and_readable_only_after_a_flush(tmp_path, results):
    """One flush covers all records appended while another one runs."""
    worker = HeldIoExecutor()
    world = ReplicaHarness(tmp_path, worker=worker)
    world.create("t", flush_messages=1)
    worker.let_sync()  # of its directory entries
    append(world, results, acks=-1)
    worker.let_write()
    assert len(worker.syncs) == 1
    for acks in (1, -1, 1):
        append(world, results, acks=acks)
        worker.let_write()
    assert len(worker.syncs) == 1
    assert results == []
    assert size_of_read(world) == 0
    worker.let_sync()
    assert results == [(0, 0)]
    assert size_of_read(world) == len(batch())
    assert len(worker.syncs) == 1
    worker.let_sync()
    assert sorted(results) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert worker.syncs == []


def test_a_topic_without_flush_messages_is_not_flushed(held, results):
    world, worker = held, held.worker
    world.create("t")
    append(world, results)
    worker.let_write()
    assert results == [(0, 0)]
    assert worker.syncs == []


def alter(world, name, value):
    """Change a config of the topic."""
    world.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value))


def test_flush_messages_changed_at_runtime_applies_from_the_next_append(held, results):
    world, worker = held, held.worker
    world.create("t")
    append(world, results)
    worker.let_write()
    assert (results, worker.syncs) == ([(0, 0)], [])
    alter(world, "flush.messages", "1")
    append(world, results)
    worker.let_write()
    assert (len(results), len(worker.syncs)) == (1, 1)
    alter(world, "flush.messages", None)
    assert len(results) == 2
    append(world, results)
    worker.let_write()
    assert len(results) == 3


def test_flush_ms_changed_at_runtime_applies_to_existing_records(tmp_path, results):
    world = ReplicaHarness(tmp_path)
    world.create("t")
    append(world, results)
    world.wall_ms += 10_000
    assert world.log_manager.flush_due(world.wall_ms) == []
    alter(world, "flush.ms", "100")
    assert [log.name for log in world.log_manager.flush_due(world.wall_ms)] == ["t-0"]


def test_the_log_file_is_flushed_before_the_acknowledgement(tmp_path):
    disk = FaultyDisk()
    world = ReplicaHarness(tmp_path, disk=disk)
    world.create("t", flush_messages=1)
    disk.reset_counters()
    world.load("t")
    assert any(path.endswith(".log") for path in disk.syncs)


# ---------------------------------------------------------------- failing


def test_a_failed_write_takes_only_its_directory_offline(tmp_path, results):
    worker = HeldIoExecutor()
    world = ReplicaHarness(tmp_path, worker=worker, directories=2)
    failures = []
    world.replicas.on_directory_failed = lambda directory, error: failures.append(directory)
    world.create("t", partitions=4)
    homes = {index: world.partition("t", index).log.directory for index in range(4)}
    assert len(set(homes.values())) == 2
    lost = [index for index in homes if homes[index] == homes[0]]
    kept = next(index for index in homes if homes[index] != homes[0])
    append(world, results)
    append(world, results)
    worker.let_write(StorageError("write", "x"))
    worker.let_write()
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert failures == [homes[0]]
    for index in lost:
        assert error_code_of(world, "t", index) == ErrorCode.KAFKA_STORAGE_ERROR
    append(world, results, index=kept)
    worker.let_write()
    assert results[2:] == [(0, 0)]


def test_a_failed_flush_is_not_retried(held, results):
    world, worker = held, held.worker
    world.create("t", flush_messages=1)
    worker.let_sync()  # of its directory entries
    append(world, results)
    worker.let_write()
    worker.let_sync(StorageError("sync", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    append(world, results)
    assert results[1:] == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert worker.writes == worker.syncs == []


def test_a_failed_directory_fails_waiting_producers(held, results):
    world, worker = held, held.worker
    world.create("t", replicas=(1, 2))
    append(world, results)
    worker.let_write()
    append(world, results, acks=1)
    worker.let_write(StorageError("write", "x"))
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2


def test_a_failed_read_takes_the_directory_offline(world, monkeypatch):

    def fail(*_, **__):
        raise StorageError("read", "x")

    monkeypatch.setattr(type(world.partition().log), "read", fail)
    with pytest.raises(KafkaError) as caught:
        size_of_read(world)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert error_code_of(world) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_directory_stays_offline_when_the_image_changes(held, results):
    world, worker = held, held.worker
    world.create("t", replicas=(1, 2))
    append(world, results, acks=1)
    worker.let_write(StorageError("write", "x"))
    world.change("t", leader=1)
    assert error_code_of(world) == ErrorCode.KAFKA_STORAGE_ERROR
    world.delete("t")
    assert error_code_of(world) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_directory_that_the_log_manager_took_offline_fails_waiting_requests_once(held, results):
    world, worker = held, held.worker
    failures = []
    world.replicas.on_directory_failed = lambda directory, error: failures.append(directory)
    world.create("t", replicas=(1, 2))
    append(world, results)
    worker.let_write()
    waiting_fetch = world.fetch("t", offset=0, leader_epoch=0)
    home = world.partition().log.directory
    world.log_manager.go_offline(home, StorageError("retain", "x"))
    for _ in range(2):
        world.replicas.check_directories()
        world.drain_purgatory()
    assert results == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert waiting_fetch.message.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures == [home]


def test_a_log_that_cannot_be_created_takes_its_directory_offline(tmp_path):
    world = ReplicaHarness(tmp_path, directories=2)
    first = tmp_path / "logs-0"
    (first / "t-0").write_bytes(b"in the way")
    failures = []
    world.replicas.on_directory_failed = lambda directory, error: failures.append(directory)
    world.create("t", partitions=2)
    assert failures == [str(first)]
    assert error_code_of(world, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    world.load("t", 1)


def test_appends_of_clients_but_not_of_coordinators_are_rejected_while_a_directory_is_full(world, results):
    append(world, results)
    directory = world.partition().log.directory
    world.replicas.on_space_changed(directory, has_room=False)
    append(world, results)
    assert size_of_read(world) == len(batch())
    world.replicas.append(
        "t", 0, batch(), acks=-1, wall_ms=world.wall_ms, done=results.add, origin=AppendOrigin.COORDINATOR
    )
    world.replicas.on_space_changed(directory, has_room=True)
    append(world, results)
    assert results == [(0, 0), (ErrorCode.KAFKA_STORAGE_ERROR, None), (0, 1), (0, 2)]


def test_a_changed_log_start_offset_is_reported_in_fetch_sessions(world):
    world.load("t", batches=3)
    session = world.fetch("t", offset=3, session=(0, 0), max_wait_ms=0).message.session_id
    assert world.fetch_all({}, session=(session, 1), max_wait_ms=0).message.responses == []
    world.partition().log.trim(2, world.wall_ms)
    world.replicas.on_log_start_changed("t", 0)
    world.replicas.on_log_start_changed("nowhere", 0)
    (topic,) = world.fetch_all({}, session=(session, 2), max_wait_ms=0).message.responses
    assert topic.partitions[0].log_start_offset == 2


def test_a_deleted_log_is_in_no_reference_cycle(world):
    """A garbage collection pauses the broker."""
    world.load("t")
    gc.collect()
    gc.disable()
    try:
        world.create("u", partitions=2)
        world.delete("u")
        world.delete("t")
        remaining = [thing for thing in gc.get_objects() if isinstance(thing, Log) and thing.topic in "tu"]
        assert remaining == []
    finally:
        gc.enable()
