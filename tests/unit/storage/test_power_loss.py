"""Losses of power, as short cases found by the simulation. Corrupt batches: test_segment_engine_recovery.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from protocol.control_records import ControlType
from protocol.records import headers
from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import CheckpointWriter
from storage.directories.future_logs import add_future_log, new_future_log, replace_with_future_log
from storage.directories.log_maintenance import begin_checkpoints
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import PARTITION_METADATA, RECOVERY_POINTS
from storage.io.disk import StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_offsets import NEVER_CLEANED
from storage.log.log_validator import AppendOrigin
from storage.segments.segment_engine import SegmentEngine
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import ProcessEnded, SimulatedDisk
from tests.support.compaction import COMPACTED, compact, put
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    ProducerInfo,
    append,
    append_as_follower,
    append_records,
    bytes_of,
    fill,
    flush,
    marker,
    truncated,
    write_checkpoint,
)

OTHER_ID = bytes(reversed(TOPIC_ID))


class Misfortune(Random):
    """Nothing survives that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        del step
        return (start if stop is None else stop) - 1


class NewNames(Misfortune):
    """Directory entries survive, bytes only if they were synced."""

    def choice(self, seq: Any) -> Any:
        return seq[1] if len(seq) == 3 else seq[0]


class OldNames(Misfortune):
    """Bytes survive, directory entries only if they were synced."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        del start, stop, step
        return 0


class Machine:
    """A file system and the process that uses it."""

    def __init__(self, directories: Sequence[str] = ("/a",), *, journals: bool = True) -> None:
        self.files = FileSystem(journals=journals)
        self._directories = {path: path.encode() * 8 for path in directories}
        for path in directories:
            self.files.make_directory(path)
        self.files.sync_all()
        self.start()

    def start(self, *, fuse: int | None = None) -> LogManager:
        """Start a process."""
        self.disk = SimulatedDisk(self.files, Random(0))
        self.disk.fuse = fuse
        self.manager = LogManager(self.disk, self._directories, SMALL, random_bytes=Random(0).randbytes)
        self.manager.load()
        return self.manager

    def lose_power(self, random: Random | None = None) -> LogManager:
        """Drop everything that was not synced and start a new process."""
        self.files.lose_power(random or Misfortune())
        return self.start()

    def log(self, topic_id: bytes = TOPIC_ID, config: LogConfig = SMALL) -> Log:
        log = self.manager.get_or_create("t", 0, topic_id, config)
        log.open()
        log.high_watermark = log.log_end_offset
        return log

    def log_after_power_loss(self) -> Log:
        """The log of a process that starts after a loss of power."""
        self.lose_power()
        return self.log()

    def checkpoint(self) -> None:
        write_checkpoint(self.manager)

    def lose_bytes(self, base_offset: int) -> None:
        """Empty a segment's log durably and start a new process."""
        self.files.file(f"/a/t-0/{base_offset:020d}.log").truncate(0)
        self.files.sync_all()
        self.start()

    def has_durable_topic_id(self) -> bool:
        file = self.files.file(f"/a/t-0/{PARTITION_METADATA}")
        return file.durable == file.data

    def recovered_with_segment_at_1(self, data: bytes = b"") -> SegmentEngine:
        """The recovered engine of t-0 after a segment at offset 1 was added to its closed files."""
        for suffix, content in ((".log", data), (".index", b""), (".timeindex", b"")):
            self.files.make_file(f"/a/t-0/{1:020d}{suffix}").write(content, 0)
        engine = SegmentEngine(self.disk, "/a/t-0", SMALL)
        engine.recover(engine.open(0) or 0, lambda *_: None)
        return engine

    def new_copy(self, log: Log) -> Log:
        """A future replica of a log in /b."""
        copy, work = new_future_log(self.manager, log, "/b", 0)
        work()
        add_future_log(self.manager, copy)
        return copy

    def replace_by_empty_copy(self, log: Log) -> None:
        """Replace a log by a future replica in /b without records."""
        copy = self.new_copy(log)
        copy.open()
        copy.release()
        replace_with_future_log(self.manager, log, copy)

    def fail_replacement(self, log: Log) -> None:
        """The same, but /b fails before the directories are renamed."""
        self.manager.submit_directory_op = lambda *_: None
        self.replace_by_empty_copy(log)
        self.manager.go_offline("/b", StorageError("write", "/b/x"))


@pytest.fixture
def machine() -> Machine:
    return Machine()


def bases(log: Log) -> list[int]:
    """Base offsets of the readable batches."""
    return [header.base_offset for _, header in headers(bytes_of(log))]


def filled(machine: Machine, count: int, **options: Any) -> Log:
    """A log with `count` batches of one record, flushed and checkpointed."""
    log = machine.log(**options)
    fill(log, count, step_ms=1)
    flush(log)
    machine.checkpoint()
    return log


def test_a_truncation_is_durable_when_it_returns(machine: Machine) -> None:
    truncated(machine.manager, filled(machine, 8), 1)
    machine.lose_power()
    assert bases(machine.log()) == [0]


def test_a_full_truncation_is_durable_with_its_start_offset(machine: Machine) -> None:
    log = filled(machine, 8)
    log.high_watermark = 8
    log.open().trim(6, NOW_MS)
    machine.checkpoint()
    truncated(machine.manager, log, 2, is_full=True)
    append(log, BIG)
    flush(log)
    machine.lose_power()
    assert bases(machine.log()) == [2]


def test_a_truncation_lowers_the_recovery_point_first() -> None:
    ends = set()
    for calls in range(30):
        machine = Machine()
        log = filled(machine, 8)
        machine.disk.fuse = calls
        with suppress(ProcessEnded):
            truncated(machine.manager, log, 1)
        known = machine.lose_power().directories["/a"].checkpoints.contents[RECOVERY_POINTS]["t", 0]
        ends.add(end := machine.log().log_end_offset)
        assert known <= end
    assert ends == {8, 2, 1}


def test_data_deleted_by_a_recovery_do_not_reappear(machine: Machine) -> None:
    log = machine.log()
    flush(log)
    fill(log, 2)
    flush(log)
    fill(log, 4)
    machine.files.sync_all()
    machine.lose_bytes(2)  # a hole: the two segments behind it go
    log = machine.log()
    assert log.log_end_offset == 2
    machine.lose_power()
    assert "00000000000000000004.log" not in machine.disk.listdir("/a/t-0")


def test_a_checkpointed_start_offset_survives_in_a_log_that_was_never_flushed(machine: Machine) -> None:
    config = replace(SMALL, barnabas_storage_engine="commitlog")
    log = machine.log(config=config)
    append(log, "a")
    append(log, "b")
    log.high_watermark = 2
    log.open().trim(1, NOW_MS)
    assert not log.recovery_point
    machine.checkpoint()
    machine.lose_power()
    assert machine.log(config=config).log_start_offset == 1


def test_producers_of_a_restarted_log_do_not_reappear(machine: Machine) -> None:
    log = machine.log()
    fill(log, 7, producer_id=7)
    flush(log)
    log.high_watermark = 7
    log.open().trim(7, NOW_MS)
    machine.checkpoint()
    machine.lose_bytes(6)
    assert (machine.log().log_start_offset, machine.log().open().producers.producers) == (7, {})
    machine.lose_power(OldNames())
    assert (machine.log().log_start_offset, machine.log().open().producers.producers) == (7, {})


def test_a_snapshot_above_the_recovered_end_does_not_reappear(machine: Machine) -> None:
    log = machine.log()
    fill(log, 7, producer_id=7)
    log.close()
    machine.lose_bytes(6)
    assert machine.log().log_end_offset == 6
    machine.lose_power(OldNames())
    assert "00000000000000000007.snapshot" not in machine.disk.listdir("/a/t-0")


def test_a_reappeared_snapshot_below_the_first_segment_is_ignored(machine: Machine) -> None:
    log = machine.log()
    fill(log, 7, producer_id=7)
    flush(log)
    old = machine.disk.read("/a/t-0/00000000000000000002.snapshot")
    log.high_watermark = 7
    log.open().trim(7, NOW_MS)
    log.close()
    machine.files.remove("/a/t-0/00000000000000000006.snapshot")
    machine.files.make_file("/a/t-0/00000000000000000002.snapshot").write(old, 0)
    machine.start()
    ((_, last_sequence, last_offset, *_),) = machine.log().open().producers.producers[7].batches
    assert (last_sequence, last_offset) == (6, 6)
    machine.files.file("/a/t-0/00000000000000000006.log").truncate(0)
    machine.files.make_file("/a/t-0/00000000000000000002.snapshot").write(old, 0)
    machine.start()
    assert machine.log().open().producers.producers == {}


def test_an_unwritten_aborted_transaction_is_left_to_the_next_sync(machine: Machine) -> None:
    log = machine.log(config=LogConfig())
    append(log, BIG)
    flush(log)
    waiting: list[Any] = []
    log.files.submit = waiting.append
    append(log, BIG, producer=ProducerInfo(7, 0, 0, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    log.open().roll(NOW_MS)
    index, *others = waiting
    for change in others:
        change()
    flush(log)
    index()
    machine.checkpoint()
    log = machine.log_after_power_loss()
    assert [found[:3] for found in wait_for_disk(log.open().engine.aborted, 0, 3)] == [(7, 1, 2)]


@pytest.mark.parametrize("has_names", [False, True], ids=["before its names are changed", "behind that"])
def test_the_recovery_point_covers_replaced_segments_until_the_names_are_durable(has_names: bool) -> None:
    """A loss of power restores the old segment, whose indexes were not synced."""
    machine = Machine(journals=False)
    log = machine.log(config=replace(COMPACTED, segment_bytes=100_000))
    for number in range(4):
        put(log, (f"k{number % 2}", "v"), timestamp_ms=NOW_MS + number)
    flush(log)
    log.open().roll(NOW_MS)
    put(log, ("last", "v"), timestamp_ms=NOW_MS)
    waiting: list[Any] = []
    log.files.submit = waiting.append if not has_names else log.files.submit
    compact(log, NOW_MS, disk=machine.disk)
    if not has_names:
        flush(log)
        for change in waiting:
            change()
    machine.checkpoint()
    log = machine.log_after_power_loss()
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 3) == (NOW_MS + 3, 3, 0)


@pytest.mark.parametrize(("is_renamed", "outcome"), [(False, (NEVER_CLEANED, [0, 1, 2])), (True, (2, [1, 2]))])
def test_the_first_dirty_offset_is_not_durable_before_the_compacted_segment(
    *, is_renamed: bool, outcome: tuple[int, list[int]]
) -> None:
    """Otherwise, with an old segment, an expired tombstone would be removed and the record that it deletes would stay."""
    machine = Machine(journals=False)
    log = machine.log(config=replace(COMPACTED, segment_bytes=100_000))
    for value in ("old", "new"):
        put(log, ("k", value), timestamp_ms=NOW_MS)
    log.open().roll(NOW_MS)
    put(log, ("last", "v"), timestamp_ms=NOW_MS)
    flush(log)
    waiting: list[Any] = []
    log.files.submit = log.files.submit if is_renamed else waiting.append
    compact(log, NOW_MS, disk=machine.disk)
    machine.checkpoint()
    log = machine.log_after_power_loss()
    assert (log.offsets.first_dirty_offset, bases(log)) == outcome


def test_a_clean_shutdown_makes_indexes_durable(machine: Machine) -> None:
    log = machine.log(config=replace(SMALL, segment_bytes=100_000))
    for number in range(5):
        append(log, BIG, timestamp_ms=NOW_MS + number, producer=ProducerInfo(7, 0, number, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    machine.manager.shutdown()
    machine.lose_power()
    log = machine.log()
    assert not log.needs_recovery
    assert [found.first_offset for found in wait_for_disk(log.open().engine.aborted, 0, 6)] == [0]
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS + 4) == (NOW_MS + 4, 4, 0)


def test_a_clean_shutdown_makes_released_logs_durable(machine: Machine) -> None:
    log = filled(machine, 3, config=replace(SMALL, segment_bytes=100_000))
    assert log.release()
    machine.manager.shutdown()
    machine.lose_power()
    assert wait_for_disk(machine.log().open().reader.offset_for_timestamp, NOW_MS + 2) == (NOW_MS + 2, 2, 0)


@pytest.mark.parametrize("journals", [True, False])
@pytest.mark.parametrize("random", [NewNames(), OldNames(), Misfortune()])
def test_epochs_survive_a_loss_of_power_during_a_shutdown_with_syncfs(
    monkeypatch: pytest.MonkeyPatch, random: Random, *, journals: bool
) -> None:
    monkeypatch.setattr("storage.directories.log_directory.SYNCED_ONE_BY_ONE", 0)
    for calls in range(100):
        machine = Machine(journals=journals)
        log = filled(machine, 3)
        assert log.recovery_point > 0
        log.assign_epoch(1)
        append(log, BIG, epoch=1)
        machine.disk.fuse = calls
        with suppress(ProcessEnded):
            machine.manager.shutdown()
        is_over = machine.disk.fuse >= 0
        machine.lose_power(random)
        log = machine.log()
        assert [log.open().epochs.epoch_at(offset) for offset in bases(log)] == [0, 0, 0, 1][: log.log_end_offset], (
            f"{calls} calls"
        )
        if is_over:
            assert (log.needs_recovery, log.log_end_offset) == (False, 4)
            break
    assert is_over


def test_the_recovery_point_is_never_at_the_next_segment_start(machine: Machine) -> None:
    """The indexes of the finished segment would not be checked."""
    log = filled(machine, 2)
    assert log.checkpoint.recovery_point < log.log_end_offset
    append(log, BIG)  # begins a segment at 2
    assert len(log.open().engine.segments()) == 2
    machine.files.sync_directory(machine.files.directory("/a/t-0"))
    machine.lose_power()
    assert wait_for_disk(machine.log().open().reader.offset_for_timestamp, NOW_MS + 1) == (NOW_MS + 1, 1, 0)


def test_an_empty_log_ignores_indexes_of_lost_batches(machine: Machine) -> None:
    log = machine.log()
    append(log, BIG, timestamp_ms=NOW_MS + 9)
    log.close()
    machine.files.file("/a/t-0/00000000000000000000.log").truncate(0)
    machine.start()
    log = machine.log()
    append(log, BIG, timestamp_ms=NOW_MS + 1)
    append(log, BIG, timestamp_ms=NOW_MS + 2)
    assert wait_for_disk(log.open().reader.offset_for_timestamp, NOW_MS) == (NOW_MS + 1, 0, 0)


def test_a_recreated_topic_inherits_no_checkpoint(machine: Machine) -> None:
    log = filled(machine, 4)
    log.high_watermark = 4
    log.open().trim(3, NOW_MS)
    machine.checkpoint()
    machine.manager.delete(log)
    log = machine.log(OTHER_ID)
    fill(log, 4)
    machine.start()  # killed
    assert machine.log(OTHER_ID).log_start_offset == 0
    assert machine.manager.logs["t", 0].recovery_point == 0


def test_a_recreated_topic_uses_the_same_directory_and_the_old_one_does_not_reappear() -> None:
    machine = Machine(("/a", "/b"))
    filled(machine, 1)
    machine.manager.delete(machine.log())
    log = machine.log(OTHER_ID)
    assert log.directory == "/a"
    machine.lose_power()
    assert bases(machine.log(OTHER_ID)) == []
    assert not [name for name in machine.disk.listdir("/a") if name.endswith("-stray")]


def test_directory_entries_of_a_killed_process_are_durable_after_the_next_flush(machine: Machine) -> None:
    append(machine.log(), BIG)
    machine.start()  # killed
    append(machine.log(), BIG)
    flush(machine.log())
    machine.lose_power()
    assert bases(machine.log()) == [0, 1]


def test_the_topic_id_is_durable_after_the_next_flush_after_a_kill(machine: Machine) -> None:
    append(machine.log(), BIG)
    machine.start()  # killed
    flush(machine.log())
    assert machine.has_durable_topic_id()


def test_the_topic_id_is_durable_after_a_full_truncation(machine: Machine) -> None:
    truncated(machine.manager, machine.log(), 5, is_full=True)
    assert machine.has_durable_topic_id()


def test_the_topic_id_is_not_considered_durable_before_the_flush_has_run(machine: Machine) -> None:
    log = machine.log()
    append(log, BIG)
    first, second = log.open().flush.begin(), log.open().flush.begin()
    second()
    assert machine.has_durable_topic_id()
    log.open().flush.complete(1)
    del first
    assert log.open().flush.begin().only_syncs


def test_a_moved_log_keeps_its_start_offset() -> None:
    machine = Machine(("/a", "/b"))
    log = filled(machine, 2, config=replace(SMALL, segment_bytes=100_000))
    log.high_watermark = 2
    log.open().trim(1, NOW_MS)
    machine.checkpoint()
    copy = machine.new_copy(log)
    append_as_follower(copy, bytes(wait_for_disk(log.open().reader.read_records, 1, 1 << 20)))
    flush(copy)
    copy.high_watermark = 2
    copy.open().trim(1, NOW_MS)
    assert copy.release()
    replace_with_future_log(machine.manager, log, copy)
    machine.lose_power()
    log = machine.log()
    assert (log.directory, log.log_start_offset) == ("/b", 1)


def test_a_log_whose_move_failed_is_recovered_by_the_next_start() -> None:
    machine = Machine(["/a", "/b"])
    machine.manager.placement.prefer(("t", 0), "/a")
    log = machine.manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    append(log, BIG, producer=ProducerInfo(7, 0, 0))
    flush(log)
    machine.fail_replacement(log)
    machine.manager.shutdown()
    manager = machine.start()
    assert not manager.directories["/a"].was_clean
    again = manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    assert (again.directory, list(again.open().producers.producers)) == ("/a", [7])


@pytest.mark.parametrize(
    "config", [SMALL, replace(SMALL, barnabas_storage_engine="commitlog")], ids=["segments", "commitlog"]
)
def test_a_log_whose_move_failed_keeps_its_start_offset(config: LogConfig) -> None:
    """The checkpoints that follow have the offsets of the replaced log until its directory is renamed."""
    machine = Machine(["/a", "/b"])
    machine.manager.placement.prefer(("t", 0), "/a")
    log = filled(machine, 2, config=config)
    log.high_watermark = 2
    log.open().trim(1, NOW_MS)
    machine.checkpoint()
    machine.fail_replacement(log)
    machine.checkpoint()
    machine.lose_power()
    log = machine.log()
    assert (log.directory, log.log_start_offset) == ("/a", 1)


def test_a_replaced_log_has_no_checkpoint_after_the_rename_of_its_directory() -> None:
    machine = Machine(["/a", "/b"])
    machine.manager.placement.prefer(("t", 0), "/a")
    log = filled(machine, 2)
    machine.checkpoint()
    machine.replace_by_empty_copy(log)
    machine.checkpoint()
    assert not machine.manager.directories["/a"].read_checkpoints()


@pytest.mark.parametrize(("killed", "lost"), [(killed, lost) for killed in range(18, 30) for lost in range(8)])
def test_a_move_interrupted_twice_is_finished_by_the_next_start(killed: int, lost: int) -> None:
    machine = Machine(["/a", "/b"], journals=False)
    machine.manager.placement.prefer(("t", 0), "/a")
    log = machine.manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    append(log, BIG)
    flush(log)
    copy = machine.new_copy(log)
    append(copy, BIG)
    flush(copy)
    copy.release()
    machine.disk.fuse = killed
    with suppress(ProcessEnded):
        replace_with_future_log(machine.manager, log, copy)
    with suppress(ProcessEnded):
        machine.start(fuse=lost)
    manager = machine.lose_power()
    assert not manager.offline
    assert bases(manager.logs["t", 0]) == [0]


def test_an_empty_segment_inside_the_previous_one_is_deleted(machine: Machine) -> None:
    filled(machine, 2, config=replace(SMALL, segment_bytes=100_000)).close()
    engine = machine.recovered_with_segment_at_1()
    assert ([segment.base_offset for segment in engine.segments()], engine.end_offset) == ([0], 2)
    assert f"{1:020d}.log" not in machine.disk.listdir("/a/t-0")


def test_a_segment_with_offsets_of_the_previous_one_ends_the_log(machine: Machine) -> None:
    log = filled(machine, 2, config=replace(SMALL, segment_bytes=100_000))
    data = bytes_of(log)
    log.close()
    engine = machine.recovered_with_segment_at_1(data[len(data) // 2 :])
    assert (engine.size_bytes, engine.end_offset) == (len(data), 2)


def test_late_checkpoint_work_writes_nothing_older(machine: Machine) -> None:
    files = CheckpointWriter(machine.disk, "/a", nullcontext())
    slow = files.update({"one": {("t", 0): 5}, "other": {("t", 0): 1}})
    quick = files.update({"one": {("t", 0): 3}})
    assert slow is not None
    assert quick is not None
    quick()
    slow()
    assert machine.disk.read("/a/one") == b"0\n1\nt 0 3\n"
    assert machine.disk.read("/a/other") == b"0\n1\nt 0 1\n"
    assert files.update({"one": {("t", 0): 3}}) is None


def about_to_lower(machine: Machine) -> Log:
    """A log with a recovery point of 2 on disk, and pending work that lowers it to 0; its indexes are not synced."""
    log = filled(machine, 3, config=LogConfig())
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 2\n"
    log.open().roll(NOW_MS)
    assert [list(steps) for _, steps in begin_checkpoints(machine.manager)]
    return log


def test_pending_checkpoint_work_runs_before_a_name_is_used_again(machine: Machine) -> None:
    machine.manager.delete(about_to_lower(machine))
    machine.log(OTHER_ID)
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 0\n"


def test_pending_checkpoint_work_runs_before_a_truncation(machine: Machine) -> None:
    truncated(machine.manager, about_to_lower(machine), 1)
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 0\n"


def test_a_segment_trimmed_before_its_sync_leaves_no_hole(machine: Machine) -> None:
    """Its directory entry may reappear without its bytes."""
    log = machine.log()
    flush(log)
    fill(log, 3)
    waiting: list[Any] = []
    log.files.submit = waiting.append
    log.high_watermark = 3
    log.open().trim(2, NOW_MS)
    flush(log)
    assert bases(machine.log_after_power_loss())[-1] == 2
