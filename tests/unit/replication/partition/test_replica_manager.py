"""Rules of replication/partition/replica_manager.py, on real logs in a directory."""

from __future__ import annotations

import gc

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_records import ConfigRecord, PartitionRecord, TopicRecord
from protocol.records import BatchBuilder
from replication.metadata.image import ResourceType
from replication.partition.partition import FetchPosition, Reader
from storage.io.disk import StorageError
from storage.log.log import Isolation, Log
from storage.log.log_validator import Origin, RejectedRecords
from tests.support.faulty_disk import FaultyDisk
from tests.support.replica_harness import HeldWorker, World, batch, read_regions, waiting

HIGH = Reader(-1, Isolation.HIGH_WATERMARK)
END = Reader(-3, Isolation.LOG_END, leader_only=False)


class Outcomes(list):
    """What appends reported: (error code, base offset or None)."""

    def note(self, code, info, error):
        self.append((code, None if info is None else info.base_offset))


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def world(tmp_path) -> World:
    made = World(tmp_path)
    made.create("t")
    return made


def append(world, outcomes, records=None, *, acks=-1, topic="t", index=0):
    world.replicas.append(
        topic, index, batch() if records is None else records, acks=acks, wall_ms=world.wall_ms, done=outcomes.note
    )


def size_of_read(world, reader=HIGH, offset=0):
    info = waiting(lambda: world.replicas.read("t", 0, FetchPosition(offset), 1 << 20, reader, min_one_batch=True))
    assert len(read_regions(info.regions)) == info.size
    return info.size


def refusal(world, topic="t", index=0):
    with pytest.raises(KafkaError) as caught:
        world.replicas.find(topic, index)
    return caught.value.code


# ---------------------------------------------------------------- following the image


def test_requests_between_two_steps_find_each_partition_old_or_new(world, outcomes):
    """Rule 1: what is not made yet is asked for again, what is made serves."""
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
    append(world, outcomes, topic="u", index=0)
    assert refusal(world, "u", 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list(steps) == [None]
    append(world, outcomes, topic="u", index=1)
    assert outcomes == [(ErrorCode.NONE, 0)] * 2


def test_image_makes_and_deletes_partitions(world):
    """Rule 1."""
    world.create("u", partitions=3)
    assert sorted(world.replicas.partitions) == [("t", 0), ("u", 0), ("u", 1), ("u", 2)]
    world.delete("u")
    assert sorted(world.replicas.partitions) == [("t", 0)]
    assert refusal(world, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_made_anew_under_its_old_name_starts_empty(world):
    """Rule 1: the topic is another one."""
    world.load("t", batches=3)
    old = world.partition().topic_id
    world.delete("t")
    world.create("t")
    assert world.partition().topic_id != old
    assert size_of_read(world) == 0


def test_partition_of_others_is_not_here(world):
    """Rule 5."""
    world.create("u", replicas=(2, 3), leader=2)
    assert refusal(world, "u") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(world, "u", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(world, "x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partition_moved_away_is_given_up(world):
    """Rule 1."""
    world.change("t", replicas=[2, 3], isr=[2], leader=2)
    assert refusal(world, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_log_of_a_topic_that_is_gone_is_set_aside_at_the_start(tmp_path):
    """Rule 1: a crash between the deletion and the renaming leaves one behind."""
    world = World(tmp_path)
    world.create("t")
    world.create("u", partitions=2)
    world.load("t")
    world.log_manager.shutdown()
    again = World(tmp_path)
    again.create("t")
    assert sorted(again.replicas.set_strays_aside()) == ["u-0", "u-1"]
    assert again.replicas.set_strays_aside() == []
    kept = sorted(path.name for path in (tmp_path / "logs-0").iterdir() if path.is_dir())
    assert kept[0] == "t-0"
    assert [name.endswith("-stray") for name in kept] == [False, True, True]
    assert size_of_read(again) == len(batch())


def test_leadership_is_news(world):
    """Seam 12: whoever wants to know is told about every change of role or epoch, once."""
    news = []
    world.replicas.on_leadership = lambda of: news.append((of.topic, of.is_leader, of.leader_epoch))
    world.create("u", replicas=(1, 2))
    world.change("u", isr=[1])
    world.change("u", leader=2)
    world.change("u", leader=1)
    world.delete("u")
    assert news == [("u", True, 0), ("u", False, 1), ("u", True, 2), ("u", False, 2)]


def test_settings_of_a_topic_reach_its_logs(world):
    """Rule 1."""
    world.create("u", max_message_bytes=100)
    assert world.partition("u").log.config.max_message_bytes == 100
    assert world.partition("t").log.config.max_message_bytes == 1048588
    outcomes = Outcomes()
    append(world, outcomes, batch(size=200), topic="u")

    def setting(kind, name, key, value):
        world.apply(ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value))

    setting(ResourceType.TOPIC, "u", "max.message.bytes", "1000")
    append(world, outcomes, batch(size=200), topic="u")
    assert outcomes == [(ErrorCode.MESSAGE_TOO_LARGE, None), (ErrorCode.NONE, 0)]
    setting(ResourceType.BROKER, "", "message.max.bytes", "500")
    assert world.partition("t").log.config.max_message_bytes == 500
    assert world.partition("u").log.config.max_message_bytes == 1000


# ---------------------------------------------------------------- appending


def test_append_is_readable_and_acknowledged_in_one_go(world, outcomes):
    """Rule 2: with an inline worker, `done` is called before `append` returns."""
    records = batch(count=3)
    append(world, outcomes, records)
    append(world, outcomes, acks=1)
    append(world, outcomes, acks=0)
    assert outcomes == [(0, 0), (0, 3), (0, 4)]
    assert size_of_read(world) == len(records) + 2 * len(batch())


def test_refused_records_are_explained(world, outcomes):
    """The KafkaError is handed on, with the single records to blame where that is known."""
    world.create("c", cleanup_policy="compact")
    builder = BatchBuilder()
    builder.append(world.wall_ms, b"k", b"v")
    builder.append(world.wall_ms, None, b"v")
    told = []
    world.replicas.append("c", 0, builder.build(), acks=1, wall_ms=world.wall_ms, done=lambda *what: told.append(what))
    ((code, info, error),) = told
    assert (code, info) == (ErrorCode.INVALID_RECORD, None)
    assert isinstance(error, RejectedRecords)
    assert [index for index, _ in error.record_errors] == [1]


def test_appends_under_way_are_committed_in_order_and_not_seen_before(tmp_path, outcomes):
    """Rule 2: several in flight, each readable and acknowledged when its own write is done."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t")
    for _ in range(3):
        append(world, outcomes)
    assert outcomes == []
    assert size_of_read(world, END) == 0
    worker.let_write()
    assert outcomes == [(0, 0)]
    assert size_of_read(world) == len(batch())
    worker.let_write()
    worker.let_write()
    assert outcomes == [(0, 0), (0, 1), (0, 2)]
    assert size_of_read(world) == 3 * len(batch())


def test_acks_all_waits_for_followers(world, outcomes):
    """Rule 2 (F5): the follower's fetch acknowledges."""
    world.create("r", replicas=(1, 2))
    append(world, outcomes, topic="r")
    append(world, outcomes, topic="r", acks=1)
    assert outcomes == [(0, 1)]
    follower = Reader(2, Isolation.LOG_END, broker_epoch=102)
    position = FetchPosition(1, 0)
    waiting(lambda: world.replicas.read("r", 0, position, 1000, follower, min_one_batch=True, fetched_mono_ms=5))
    assert outcomes == [(0, 1), (0, 0)]
    assert world.partition("r").high_watermark == 1


def test_waiting_follower_that_is_only_looked_at_again_is_not_counted_again(world):
    """F5: `fetched_mono_ms` None is another look for the same request."""
    world.create("r", replicas=(1, 2))
    world.load("r", batches=2)
    follower = Reader(2, Isolation.LOG_END)
    waiting(lambda: world.replicas.read("r", 0, FetchPosition(2), 1000, follower, min_one_batch=True))
    assert world.partition("r").high_watermark == 0


def test_repeated_batch_is_told_where_it_lies_once_that_is_safe(tmp_path, outcomes):
    """A duplicate writes nothing and waits for the high watermark like the first."""
    world = World(tmp_path)
    world.create("t", replicas=(1, 2))
    batches = [batch(producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in (0, 1)]
    again = bytearray(batches[0])
    for records in batches:
        append(world, outcomes, records)
    append(world, outcomes, again)
    assert outcomes == []
    assert world.partition().log.log_end_offset == 2
    follower = Reader(2, Isolation.LOG_END)
    waiting(
        lambda: world.replicas.read("t", 0, FetchPosition(1), 1000, follower, min_one_batch=True, fetched_mono_ms=0)
    )
    assert outcomes == [(0, 0), (0, 0)]


def test_append_to_a_partition_that_is_deleted_meanwhile_fails(tmp_path, outcomes):
    """Rule 2: done is called, with an error, and nothing breaks."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t")
    append(world, outcomes)
    world.delete("t")
    world.create("t")
    worker.let_write()
    assert outcomes == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)]
    assert size_of_read(world, END) == 0


def test_append_of_a_leader_that_loses_its_role_meanwhile_fails(tmp_path, outcomes):
    """Rule 2: whoever leads now may cut the records off."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", replicas=(1, 2))
    append(world, outcomes, acks=1)
    world.change("t", leader=2)
    worker.let_write()
    append(world, outcomes)
    assert outcomes == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)] * 2


# ---------------------------------------------------------------- syncing


def test_records_are_acknowledged_and_readable_only_when_synced(tmp_path, outcomes):
    """Rule 2 and 3 (seeds.md R6, D12b) with flush.messages=1: one sync covers all that came while another ran."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", flush_messages=1)
    worker.let_sync()  # of its names
    append(world, outcomes, acks=-1)
    worker.let_write()
    assert len(worker.syncs) == 1
    for acks in (1, -1, 1):
        append(world, outcomes, acks=acks)
        worker.let_write()
    assert len(worker.syncs) == 1
    assert outcomes == []
    assert size_of_read(world) == 0
    worker.let_sync()
    assert outcomes == [(0, 0)]
    assert size_of_read(world) == len(batch())
    assert len(worker.syncs) == 1
    worker.let_sync()
    assert sorted(outcomes) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert worker.syncs == []


def test_topic_that_does_not_flush_is_not_synced(tmp_path, outcomes):
    """Rule 2."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t")
    append(world, outcomes)
    worker.let_write()
    assert outcomes == [(0, 0)]
    assert worker.syncs == []


def alter(world, name, value):
    """A setting of the topic, changed while it is in use."""
    world.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value))


def test_a_topic_that_is_told_to_flush_does_so_from_the_next_append_on(tmp_path, outcomes):
    """flush.messages, set and taken back on a live topic; who waits for a sync then need not any more."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t")
    append(world, outcomes)
    worker.let_write()
    assert (outcomes, worker.syncs) == ([(0, 0)], [])
    alter(world, "flush.messages", "1")
    append(world, outcomes)
    worker.let_write()
    assert (len(outcomes), len(worker.syncs)) == (1, 1)
    alter(world, "flush.messages", None)
    assert len(outcomes) == 2
    append(world, outcomes)
    worker.let_write()
    assert len(outcomes) == 3


def test_a_topic_that_is_told_how_long_records_may_wait_is_flushed_in_time(tmp_path, outcomes):
    """flush.ms on a live topic: records that were there before count too."""
    world = World(tmp_path)
    world.create("t")
    append(world, outcomes)
    world.wall_ms += 10_000
    assert world.log_manager.flush_due(world.wall_ms) == []
    alter(world, "flush.ms", "100")
    assert [log.name for log in world.log_manager.flush_due(world.wall_ms)] == ["t-0"]


def test_sync_is_real(tmp_path):
    """D12b: the file is synced before the acknowledgement, by the inline worker too."""
    disk = FaultyDisk()
    world = World(tmp_path, disk=disk)
    world.create("t", flush_messages=1)
    disk.forget_history()
    world.load("t")
    assert any(path.endswith(".log") for path in disk.syncs)


# ---------------------------------------------------------------- failing


def test_failed_write_takes_its_directory_offline_and_no_other(tmp_path, outcomes):
    """Rule 4."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker, directories=2)
    failed = []
    world.replicas.on_directory_failed = lambda directory, error: failed.append(directory)
    world.create("t", partitions=4)
    homes = {index: world.partition("t", index).log.directory for index in range(4)}
    assert len(set(homes.values())) == 2
    lost = [index for index in homes if homes[index] == homes[0]]
    kept = next(index for index in homes if homes[index] != homes[0])
    append(world, outcomes)
    append(world, outcomes)
    worker.let_write(StorageError("write", "x"))
    worker.let_write()
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2
    assert failed == [homes[0]]
    for index in lost:
        assert refusal(world, "t", index) == ErrorCode.KAFKA_STORAGE_ERROR
    append(world, outcomes, index=kept)
    worker.let_write()
    assert outcomes[2:] == [(0, 0)]


def test_failed_sync_is_final(tmp_path, outcomes):
    """Rule 4 (D12b): it is not tried again, and those who wait are told."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", flush_messages=1)
    worker.let_sync()  # of its names
    append(world, outcomes)
    worker.let_write()
    worker.let_sync(StorageError("sync", "x"))
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    append(world, outcomes)
    assert outcomes[1:] == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert worker.writes == worker.syncs == []


def test_waiting_acknowledgements_of_a_lost_directory_are_told(tmp_path, outcomes):
    """Rule 4."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", replicas=(1, 2))
    append(world, outcomes)
    worker.let_write()
    append(world, outcomes, acks=1)
    worker.let_write(StorageError("write", "x"))
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)] * 2


def test_failed_read_takes_the_directory_offline(world, monkeypatch):
    """Rule 4."""

    def fail(*_, **__):
        raise StorageError("read", "x")

    monkeypatch.setattr(type(world.partition().log), "read", fail)
    with pytest.raises(KafkaError) as caught:
        size_of_read(world)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(world) == ErrorCode.KAFKA_STORAGE_ERROR


def test_failed_directory_stays_so_when_the_image_changes(tmp_path, outcomes):
    """Rule 4."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create("t", replicas=(1, 2))
    append(world, outcomes, acks=1)
    worker.let_write(StorageError("write", "x"))
    world.change("t", leader=1)
    assert refusal(world) == ErrorCode.KAFKA_STORAGE_ERROR
    world.delete("t")
    assert refusal(world) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_directory_that_failed_while_it_was_looked_after_is_followed(tmp_path, outcomes):
    """Rule 4: the log manager takes directories offline too; who waits is told, once."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    failed = []
    world.replicas.on_directory_failed = lambda directory, error: failed.append(directory)
    world.create("t", replicas=(1, 2))
    append(world, outcomes)
    worker.let_write()
    parked = world.fetch("t", offset=0, leader_epoch=0)
    home = world.partition().log.directory
    world.log_manager.go_offline(home, StorageError("retain", "x"))
    for _ in range(2):
        world.replicas.check_directories()
        world.settle()
    assert outcomes == [(ErrorCode.KAFKA_STORAGE_ERROR, None)]
    assert parked.message.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failed == [home]


def test_log_that_cannot_be_made_is_a_storage_error_and_its_directory_offline(tmp_path):
    """Rule 4."""
    world = World(tmp_path, directories=2)
    first = tmp_path / "logs-0"
    (first / "t-0").write_bytes(b"in the way")
    failed = []
    world.replicas.on_directory_failed = lambda directory, error: failed.append(directory)
    world.create("t", partitions=2)
    assert failed == [str(first)]
    assert refusal(world, "t", 0) == ErrorCode.KAFKA_STORAGE_ERROR
    world.load("t", 1)


def test_clients_are_refused_while_a_directory_is_full(world, outcomes):
    """Rule 7: coordinators are not, for their writes wait; reads go on, and nothing has happened when there is room."""
    append(world, outcomes)
    directory = world.partition().log.directory
    world.replicas.room_changed(directory, has_room=False)
    append(world, outcomes)
    assert size_of_read(world) == len(batch())
    world.replicas.append(
        "t", 0, batch(), acks=-1, wall_ms=world.wall_ms, done=outcomes.note, origin=Origin.COORDINATOR
    )
    world.replicas.room_changed(directory, has_room=True)
    append(world, outcomes)
    assert outcomes == [(0, 0), (ErrorCode.KAFKA_STORAGE_ERROR, None), (0, 1), (0, 2)]


def test_moved_log_start_is_told_to_sessions(world):
    """Retention moves it; nobody who is parked has to be answered for that."""
    world.load("t", batches=3)
    session = world.fetch("t", offset=3, session=(0, 0), max_wait_ms=0).message.session_id
    assert world.fetch_all({}, session=(session, 1), max_wait_ms=0).message.responses == []
    world.partition().log.trim(2, world.wall_ms)
    world.replicas.log_start_moved("t", 0)
    world.replicas.log_start_moved("nowhere", 0)
    (topic,) = world.fetch_all({}, session=(session, 2), max_wait_ms=0).message.responses
    assert topic.partitions[0].log_start_offset == 2


def test_a_log_that_is_gone_leaves_nothing_to_the_collector(world):
    """Thousands of them in cycles would wait for a collection, which stands still for all that there is."""
    world.load("t")
    gc.collect()
    gc.disable()
    try:
        world.create("u", partitions=2)
        world.delete("u")
        world.delete("t")
        left = [thing for thing in gc.get_objects() if isinstance(thing, Log) and thing.topic in "tu"]
        assert left == []
    finally:
        gc.enable()
