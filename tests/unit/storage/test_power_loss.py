"""What a loss of power must not do, found by the simulation (tests/simulation) and kept here in small.

NOT HERE Long histories; damaged batches (test_segment_engine_recovery.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from protocol.records import ControlType, headers
from storage.config.log_config import LogConfig
from storage.directories.checkpoint_writer import CheckpointWriter
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import PARTITION_METADATA, RECOVERY_POINTS
from storage.io.disk import StorageError
from storage.log.log import AppendOrigin, Log
from storage.segments.segment_engine import SegmentEngine
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import ProcessEnded, SimulatedDisk
from tests.simulation.storage.invariants import read_all
from tests.support.compaction import COMPACTED, compact, put
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    Idempotent,
    append,
    append_as_follower,
    append_records,
    marker,
)

OTHER_ID = bytes(reversed(TOPIC_ID))


class Misfortune(Random):
    """Nothing survives that was not synced."""

    def choice(self, seq: Any) -> Any:
        """Keep none of the names."""
        return seq[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Keep none of the bytes."""
        del step
        return (start if stop is None else stop) - 1


class NewNames(Misfortune):
    """Names survive, bytes only where they were synced."""

    def choice(self, seq: Any) -> Any:
        """Keep all of the names, none of the bytes."""
        return seq[1] if len(seq) == 3 else seq[0]


class OldNames(Misfortune):
    """Bytes survive, names only where they were synced."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Keep all of the bytes."""
        del start, stop, step
        return 0


class Machine:
    """A file system and the process on it."""

    def __init__(self, directories: Sequence[str] = ("/a",), *, journals: bool = True) -> None:
        self.files = FileSystem(journals=journals)
        self._directories = {path: path.encode() * 8 for path in directories}
        for path in directories:
            self.files.make_directory(path)
        self.files.sync_all()
        self.start()

    def start(self, *, fuse: int | None = None) -> LogManager:
        """A new process, which ends before so many changes."""
        self.disk = SimulatedDisk(self.files, Random(0))
        self.disk.fuse = fuse
        self.manager = LogManager(self.disk, self._directories, SMALL, random_bytes=Random(0).randbytes)
        self.manager.load()
        return self.manager

    def lose_power(self, random: Random | None = None) -> LogManager:
        """What was not synced is gone; a new process."""
        self.files.lose_power(random or Misfortune())
        return self.start()

    def log(self, topic_id: bytes = TOPIC_ID, config: LogConfig = SMALL) -> Log:
        """The one log."""
        log = self.manager.get_or_create("t", 0, topic_id, config)
        log.open()
        log.high_watermark = log.log_end_offset
        return log

    def checkpoint(self) -> None:
        """Write all checkpoints."""
        for _, work in self.manager.checkpoint():
            work()


def flush(log: Log) -> None:
    """Make a log durable."""
    end_offset = log.log_end_offset
    log.sync_work()()
    log.flushed(end_offset)


def bases(log: Log) -> list[int]:
    """Offsets of the batches that can be read."""
    return [header.base_offset for _, header in headers(read_all(log, log.log_start_offset))]


def filled(machine: Machine, count: int, **options: Any) -> Log:
    """A log with so many batches of one record, durable, and checkpointed."""
    log = machine.log(**options)
    for number in range(count):
        append(log, BIG, timestamp_ms=NOW_MS + number)
    flush(log)
    machine.checkpoint()
    return log


def test_a_truncation_is_durable_when_it_returns() -> None:
    """Else what was cut off comes back behind what was appended in its place, or instead of it."""
    machine = Machine()
    machine.manager.truncate(filled(machine, 8), 1)
    machine.lose_power()
    assert bases(machine.log()) == [0]


def test_a_log_begun_anew_is_so_durably_and_its_start_with_it() -> None:
    """A start that was written down before would lie behind the new end, and empty the log."""
    machine = Machine()
    log = filled(machine, 8)
    log.high_watermark = 8
    log.trim(6, NOW_MS)
    machine.checkpoint()
    machine.manager.truncate_fully(log, 2)
    append(log, BIG)
    flush(log)
    machine.lose_power()
    assert bases(machine.log()) == [2]


def test_a_truncation_lowers_the_recovery_point_first() -> None:
    """A crash amid it would leave a recovery point behind the end, before which a hole counts as compacted."""
    ends = set()
    for calls in range(30):
        machine = Machine()
        log = filled(machine, 8)
        machine.disk.fuse = calls
        with suppress(ProcessEnded):
            machine.manager.truncate(log, 1)
        known = machine.lose_power().directories["/a"].checkpoints.contents[RECOVERY_POINTS]["t", 0]
        ends.add(end := machine.log().log_end_offset)
        assert known <= end
    assert ends == {8, 2, 1}


def test_what_a_recovery_drops_does_not_come_back() -> None:
    """It would stand behind what is appended in its place."""
    machine = Machine()
    log = machine.log()
    flush(log)
    for _ in range(2):
        append(log, BIG)
    flush(log)
    for _ in range(4):
        append(log, BIG)
    machine.files.sync_all()
    machine.files.file("/a/t-0/00000000000000000002.log").truncate(0)  # a hole: the two segments behind it go
    machine.files.sync_all()
    machine.start()
    log = machine.log()
    assert log.log_end_offset == 2
    machine.lose_power()
    assert "00000000000000000004.log" not in machine.disk.listdir("/a/t-0")


def test_producers_of_a_log_that_a_recovery_begins_anew_do_not_come_back() -> None:
    """All of it was deleted, and the rest was lost: the snapshots go before it is durable that nothing is left."""
    machine = Machine()
    log = machine.log()
    for number in range(7):
        append(log, BIG, producer=Idempotent(7, 0, number))
    flush(log)
    log.high_watermark = 7
    log.trim(7, NOW_MS)
    machine.checkpoint()
    machine.files.file("/a/t-0/00000000000000000006.log").truncate(0)
    machine.files.sync_all()
    machine.start()
    assert (machine.log().log_start_offset, machine.log().producers.producers) == (7, {})
    machine.lose_power(OldNames())
    assert (machine.log().log_start_offset, machine.log().producers.producers) == (7, {})


def test_a_snapshot_from_behind_the_end_of_a_recovery_does_not_come_back() -> None:
    """Else it would tell of producers that what was appended in the place of their batches does not know."""
    machine = Machine()
    log = machine.log()
    for number in range(7):
        append(log, BIG, producer=Idempotent(7, 0, number))
    log.close()
    machine.files.file("/a/t-0/00000000000000000006.log").truncate(0)
    machine.files.sync_all()
    machine.start()
    assert machine.log().log_end_offset == 6
    machine.lose_power(OldNames())
    assert "00000000000000000007.snapshot" not in machine.disk.listdir("/a/t-0")


def test_a_snapshot_that_comes_back_from_before_the_first_segment_is_not_believed() -> None:
    """What its producers wrote after it was deleted; who knows nothing of them is right, who takes them for behind is not."""
    machine = Machine()
    log = machine.log()
    for number in range(7):
        append(log, BIG, producer=Idempotent(7, 0, number))
    flush(log)
    old = machine.disk.read("/a/t-0/00000000000000000002.snapshot")
    log.high_watermark = 7
    log.trim(7, NOW_MS)
    log.close()
    machine.files.remove("/a/t-0/00000000000000000006.snapshot")
    machine.files.make_file("/a/t-0/00000000000000000002.snapshot").write(old, 0)
    machine.start()
    ((_, last_sequence, last_offset, *_),) = machine.log().producers.producers[7].batches
    assert (last_sequence, last_offset) == (6, 6)
    machine.files.file("/a/t-0/00000000000000000006.log").truncate(0)
    machine.files.make_file("/a/t-0/00000000000000000002.snapshot").write(old, 0)
    machine.start()
    assert machine.log().producers.producers == {}


def test_an_aborted_transaction_that_is_still_to_be_written_waits_for_the_next_sync() -> None:
    """Of a finished segment nobody builds it anew: what was aborted would be read with read_committed."""
    machine = Machine()
    log = machine.log(config=LogConfig())
    append(log, BIG)
    flush(log)
    waiting: list[Any] = []
    log.submit = waiting.append
    append(log, BIG, producer=Idempotent(7, 0, 0, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    log.roll(NOW_MS)
    index, *others = waiting
    for change in others:
        change()
    flush(log)
    index()
    machine.checkpoint()
    log = machine.lose_power() and machine.log()
    assert [found[:3] for found in log.open().aborted(0, 3)] == [(7, 1, 2)]


@pytest.mark.parametrize("has_names", [False, True], ids=["before its names are changed", "behind that"])
def test_indexes_of_what_a_compaction_replaced_may_be_needed_until_its_names_are_durable(has_names: bool) -> None:
    """A loss of power brings the old segment back; its indexes were not synced, and a recovery has to look there."""
    machine = Machine(journals=False)
    log = machine.log(config=replace(COMPACTED, segment_bytes=100_000))
    for number in range(4):
        put(log, (f"k{number % 2}", "v"), timestamp_ms=NOW_MS + number)
    flush(log)
    log.roll(NOW_MS)
    put(log, ("last", "v"), timestamp_ms=NOW_MS)
    waiting: list[Any] = []
    log.submit = waiting.append if not has_names else log.submit
    compact(log, NOW_MS, disk=machine.disk)
    if not has_names:
        flush(log)
        for change in waiting:
            change()
    machine.checkpoint()
    log = machine.lose_power() and machine.log()
    assert log.offset_for_timestamp(NOW_MS + 3) == (NOW_MS + 3, 3, 0)


def test_a_clean_stop_makes_indexes_durable_too() -> None:
    """Nobody looks at them again after it: times, and aborted transactions, would be missing."""
    machine = Machine()
    log = machine.log(config=replace(SMALL, segment_bytes=100_000))
    for number in range(5):
        append(log, BIG, timestamp_ms=NOW_MS + number, producer=Idempotent(7, 0, number, transactional=True))
    append_records(log, marker(ControlType.ABORT, 7, 0), origin=AppendOrigin.COORDINATOR)
    machine.manager.shutdown()
    machine.lose_power()
    log = machine.log()
    assert not log.needs_recovery
    assert [found.first_offset for found in log.open().aborted(0, 6)] == [0]
    assert log.offset_for_timestamp(NOW_MS + 4) == (NOW_MS + 4, 4, 0)


def test_a_clean_stop_makes_durable_what_was_let_go_of_before() -> None:
    """A log that retention has opened and closed again is not in use any more at the stop."""
    machine = Machine()
    log = filled(machine, 3, config=replace(SMALL, segment_bytes=100_000))
    assert log.release()
    machine.manager.shutdown()
    machine.lose_power()
    assert machine.log().offset_for_timestamp(NOW_MS + 2) == (NOW_MS + 2, 2, 0)


@pytest.mark.parametrize("journals", [True, False])
@pytest.mark.parametrize("random", [NewNames(), OldNames(), Misfortune()])
def test_epochs_outlive_a_loss_of_power_amid_a_stop_that_syncs_the_whole_file_system(
    monkeypatch: pytest.MonkeyPatch, random: Random, *, journals: bool
) -> None:
    """Nobody reads the batches before the recovery point again: the file that knows their epochs must not be lost."""
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
        assert [log.epoch_of(offset) for offset in bases(log)] == [0, 0, 0, 1][: log.log_end_offset], f"{calls} calls"
        if is_over:
            assert (log.needs_recovery, log.log_end_offset) == (False, 4)
            break
    assert is_over


def test_a_recovery_point_is_never_where_the_next_segment_may_begin() -> None:
    """It would vouch for the indexes of the one that is finished there."""
    machine = Machine()
    log = filled(machine, 2)
    assert log.checkpoint.recovery_point < log.log_end_offset
    append(log, BIG)  # begins a segment at 2
    assert len(log.open().segments()) == 2
    machine.files.sync_directory(machine.files.directory("/a/t-0"))
    machine.lose_power()
    assert machine.log().offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 1, 0)


def test_an_empty_log_does_not_believe_indexes_that_outlived_its_batches() -> None:
    """Bytes of different files reach the disk in any order."""
    machine = Machine()
    log = machine.log()
    append(log, BIG, timestamp_ms=NOW_MS + 9)
    log.close()
    machine.files.file("/a/t-0/00000000000000000000.log").truncate(0)
    machine.start()
    log = machine.log()
    append(log, BIG, timestamp_ms=NOW_MS + 1)
    append(log, BIG, timestamp_ms=NOW_MS + 2)
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS + 1, 0, 0)


def test_a_topic_made_again_inherits_no_checkpoint() -> None:
    """Neither where the old one began, nor up to where that was durable."""
    machine = Machine()
    log = filled(machine, 4)
    log.high_watermark = 4
    log.trim(3, NOW_MS)
    machine.checkpoint()
    machine.manager.delete(log)
    log = machine.log(OTHER_ID)
    for _ in range(4):
        append(log, BIG)
    machine.start()  # killed
    assert machine.log(OTHER_ID).log_start_offset == 0
    assert machine.manager.logs["t", 0].recovery_point == 0


def test_a_name_used_again_lies_in_the_same_directory_and_the_old_one_never_comes_back() -> None:
    """Else both could be found after a loss of power, in two directories, or the one in the other's place."""
    machine = Machine(("/a", "/b"))
    filled(machine, 1)
    machine.manager.delete(machine.log())
    log = machine.log(OTHER_ID)
    assert log.directory == "/a"
    machine.lose_power()
    assert bases(machine.log(OTHER_ID)) == []
    assert not [name for name in machine.disk.listdir("/a") if name.endswith("-stray")]


def test_names_made_by_a_process_that_was_killed_are_durable_with_the_next_flush() -> None:
    """The next process cannot know that its predecessor never synced them."""
    machine = Machine()
    append(machine.log(), BIG)
    machine.start()  # killed
    log = machine.log()
    append(log, BIG)
    flush(log)
    machine.lose_power()
    assert bases(machine.log()) == [0, 1]


def test_whose_log_it_is_is_durable_with_the_next_flush_after_a_kill() -> None:
    """Rubbish in the metadata file would make it the log of another topic, and put it aside with all that was flushed."""
    machine = Machine()
    append(machine.log(), BIG)
    machine.start()  # killed
    flush(machine.log())
    file = machine.files.file(f"/a/t-0/{PARTITION_METADATA}")
    assert file.durable == file.data


def test_whose_log_it_is_is_durable_when_it_has_begun_anew() -> None:
    """Nothing of it need have been synced before."""
    machine = Machine()
    machine.manager.truncate_fully(machine.log(), 5)
    file = machine.files.file(f"/a/t-0/{PARTITION_METADATA}")
    assert file.durable == file.data


def test_whose_log_it_is_is_not_taken_for_durable_while_a_sync_is_still_to_come() -> None:
    """It may come to nothing, or later than what counts on it."""
    machine = Machine()
    log = machine.log()
    append(log, BIG)
    first, second = log.sync_work(), log.sync_work()
    second()
    file = machine.files.file(f"/a/t-0/{PARTITION_METADATA}")
    assert file.durable == file.data
    log.flushed(1)
    del first
    assert log.sync_work().only_syncs


def test_a_log_keeps_its_start_when_it_moves() -> None:
    """The directory where it lies now writes it down before the log lies there."""
    machine = Machine(("/a", "/b"))
    log = filled(machine, 2, config=replace(SMALL, segment_bytes=100_000))
    log.high_watermark = 2
    log.trim(1, NOW_MS)
    machine.checkpoint()
    copy, work = machine.manager.new_future_log(log, "/b", 0)
    work()
    machine.manager.add_future_log(copy)
    append_as_follower(copy, log.read_records(1, 1 << 20))
    flush(copy)
    copy.high_watermark = 2
    copy.trim(1, NOW_MS)
    assert copy.release()
    machine.manager.replace_with_future_log(log, copy)
    machine.lose_power()
    log = machine.log()
    assert (log.directory, log.log_start_offset) == ("/b", 1)


def test_a_log_that_could_not_move_at_last_is_recovered_by_the_next_start() -> None:
    """The other directory failed before its copy took the log's place, and nobody has closed the log since."""
    machine = Machine(["/a", "/b"])
    machine.manager.set_preferred_log_dir("t", 0, "/a")
    log = machine.manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    append(log, BIG, producer=Idempotent(7, 0, 0))
    flush(log)
    copy, work = machine.manager.new_future_log(log, "/b", 0)
    work()
    machine.manager.add_future_log(copy)
    copy.open()
    copy.release()
    machine.manager.submit_directory_op = lambda *_: None
    machine.manager.replace_with_future_log(log, copy)
    machine.manager.go_offline("/b", StorageError("sync", "/b/x"))
    machine.manager.shutdown()
    manager = machine.start()
    assert not manager.directories["/a"].was_clean
    again = manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    again.open()
    assert (again.directory, list(again.producers.producers)) == ("/a", [7])


@pytest.mark.parametrize(("killed", "lost"), [(killed, lost) for killed in range(18, 30) for lost in range(8)])
def test_a_move_that_one_start_went_on_with_is_finished_by_the_next(killed: int, lost: int) -> None:
    """The first process is killed amid the move, the second loses its power in the start: of log and copy one is there."""
    machine = Machine(["/a", "/b"], journals=False)
    machine.manager.set_preferred_log_dir("t", 0, "/a")
    log = machine.manager.get_or_create("t", 0, TOPIC_ID, SMALL)
    append(log, BIG)
    flush(log)
    copy, work = machine.manager.new_future_log(log, "/b", 0)
    work()
    machine.manager.add_future_log(copy)
    append(copy, BIG)
    flush(copy)
    copy.release()
    machine.disk.fuse = killed
    with suppress(ProcessEnded):
        machine.manager.replace_with_future_log(log, copy)
    with suppress(ProcessEnded):
        machine.start(fuse=lost)
    manager = machine.lose_power()
    assert not manager.offline
    assert bases(manager.logs["t", 0]) == [0]


def test_a_segment_that_begins_inside_the_one_before_goes() -> None:
    """It had just been made, when a log was to begin anew, or was to go: its offsets would be there twice."""
    machine = Machine()
    log = filled(machine, 2, config=replace(SMALL, segment_bytes=100_000))
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        machine.files.make_file(f"/a/t-0/00000000000000000001{suffix}")
    engine = SegmentEngine(machine.disk, "/a/t-0", SMALL)
    engine.recover(engine.open(0) or 0, lambda *_: None)
    assert ([segment.base_offset for segment in engine.segments()], engine.end_offset) == ([0], 2)
    assert "00000000000000000001.log" not in machine.disk.listdir("/a/t-0")


def test_a_segment_with_offsets_of_the_one_before_ends_the_log() -> None:
    """Whatever it holds: nobody can tell which of them is right, and the first was served before."""
    machine = Machine()
    log = filled(machine, 2, config=replace(SMALL, segment_bytes=100_000))
    data = read_all(log, 0)
    log.close()
    second = data[len(data) // 2 :]
    for suffix in (".log", ".index", ".timeindex"):
        machine.files.make_file(f"/a/t-0/00000000000000000001{suffix}")
    machine.files.file("/a/t-0/00000000000000000001.log").write(second, 0)
    engine = SegmentEngine(machine.disk, "/a/t-0", SMALL)
    engine.recover(engine.open(0) or 0, lambda *_: None)
    assert (engine.size_bytes, engine.end_offset) == (len(data), 2)


def test_a_checkpoint_that_comes_late_writes_nothing_older() -> None:
    """What was collected later wins, whoever is at work first."""
    machine = Machine()
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
    """A log whose recovery point is 2 on disk, and which a thread is to lower to 0: its indexes are not synced."""
    log = filled(machine, 3, config=LogConfig())
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 2\n"
    log.roll(NOW_MS)
    assert machine.manager.checkpoint()
    return log


def test_checkpoints_that_a_thread_is_to_lower_are_lowered_before_a_name_is_used_again() -> None:
    """Else the topic that is made anew is vouched for by the recovery point of the one before."""
    machine = Machine()
    machine.manager.delete(about_to_lower(machine))
    machine.log(OTHER_ID)
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 0\n"


def test_checkpoints_that_a_thread_is_to_lower_are_lowered_before_a_truncation() -> None:
    """Else what is appended in the place of what was cut is vouched for."""
    machine = Machine()
    machine.manager.truncate(about_to_lower(machine), 1)
    assert machine.disk.read(f"/a/{RECOVERY_POINTS}") == b"0\n1\nt 0 0\n"


def test_what_is_trimmed_before_it_was_synced_takes_nothing_with_it() -> None:
    """Its names may come back, without its bytes: a hole, behind which everything would be dropped."""
    machine = Machine()
    log = machine.log()
    flush(log)
    for _ in range(3):
        append(log, BIG)
    waiting: list[Any] = []
    log.submit = waiting.append
    log.high_watermark = 3
    log.trim(2, NOW_MS)
    flush(log)
    assert bases(machine.lose_power() and machine.log())[-1] == 2
