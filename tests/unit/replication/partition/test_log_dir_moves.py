"""The rules of `LogDirMoves` and `future_replica.py`, on real logs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from replication.partition.log_dir_moves import CLEANING_CHECK_MS, MAX_SWITCHES
from storage.config.log_config import LogConfig
from storage.directories.future_logs import take_interrupted_moves
from storage.directories.future_replica import COMPLETE
from storage.directories.log_maintenance import due_deletions
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import FUTURE, parse_future_dir_name
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import TEMPORARY, Disk, StorageError
from storage.log.log import Log
from tests.support.crashing_disk import CrashingDisk, PowerLoss
from tests.support.replica_harness import (
    NOW_MS,
    Answer,
    QueuedIoExecutor,
    ReplicaHarness,
    batch,
    fetched,
    offsets,
    produced,
)

E = ErrorCode
CHANGES_OF_A_MOVE = 30
"""Changes of files and names, each of which a power failure may prevent."""
SMALL: dict[str, Any] = {"internal_segment_bytes": 1000}
MAX_STEPS = 2000
"""A move that takes more steps never ends."""


class SteppedExecutor(QueuedIoExecutor):
    """Runs queued work when the test calls it."""

    broken = ""

    def step(self) -> None:
        """Run the next piece of work; the work of the directory `broken` fails."""
        work = self.work.popleft()
        work.finish(io_error(work.directory) if work.directory == self.broken else None)

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            if self.work:
                self.step()

    def run_all(self) -> None:
        """Run all queued work and what follows from it."""
        for _ in range(MAX_STEPS):
            if not self.work:
                return
            self.step()
        raise AssertionError("the move does not end")


class MoveHarness(ReplicaHarness):
    """A broker with several log directories that moves partition 0 of topic t."""

    executor: SteppedExecutor

    @property
    def log(self) -> Log:
        return self.partition().log

    def start_move(self, steps: int = 0) -> str:
        """Start a move to another directory, and run some steps of it; returns the directory."""
        target = next(path for path in self.log_manager.directories if path != self.log.directory)
        assert self.moves.alter("t", 0, target) == E.NONE
        if steps:
            self.executor.run_steps(steps)
        return target

    def step_until_copied(self) -> None:
        """Run the steps up to the creation of the copy."""
        while not self.log_manager.future_logs:
            self.executor.step()

    def run_deletions(self, later_ms: int = 0) -> None:
        delete(self.log_manager, self.wall_ms + later_ms)

    def base_offsets(self, end: int) -> list[int]:
        """Base offsets of all batches from the log start offset."""
        found = [self.log.log_start_offset - 1]
        while found[-1] + 1 < end:
            data = fetched(self.fetch(offset=found[-1] + 1, max_wait_ms=0))
            assert data.error_code == E.NONE
            found += offsets(data)
        return found[1:]


@pytest.fixture
def harness(tmp_path: Path) -> MoveHarness:
    return MoveHarness(tmp_path, directories=2)


@pytest.fixture
def stepped(tmp_path: Path) -> MoveHarness:
    """A topic with one batch."""
    return stepped_harness(tmp_path)


def stepped_harness(path: Path, directories: int = 2, **topic: Any) -> MoveHarness:
    executor = SteppedExecutor()
    harness = MoveHarness(path, worker=executor, directories=directories)
    harness.executor = executor
    harness.create(**topic)
    harness.produce(acks=1)
    executor.run_all()
    return harness


def delete(manager: LogManager, wall_ms: int) -> None:
    """Delete what is due."""
    for _, work in due_deletions(manager, wall_ms):
        work()


def directories_of_t(path: str) -> list[str]:
    """The directories of the partition and its copies in a log directory."""
    return sorted(entry.name for entry in Path(path).iterdir() if entry.name.startswith("t-0"))


def io_error(directory: str) -> StorageError:
    return StorageError("use", directory, OSError(5, "Input/output error"))


# ---- moving ----------------------------------------------------------------------------------------------


def test_a_move_keeps_records_epochs_and_watermarks_and_deletes_the_old_directory(harness: MoveHarness) -> None:
    harness.create(epoch=3, **SMALL)
    harness.load(batches=10, size=300)
    before = harness.log
    target = harness.start_move()
    partition = harness.partition()
    assert partition.log is not before
    assert (partition.log.directory, partition.log.path) == (target, f"{target}/t-0")
    assert not harness.moves.active
    assert not harness.log_manager.future_logs
    assert harness.base_offsets(10) == list(range(10))
    assert (partition.high_watermark, partition.log.high_watermark, partition.log.open().epochs.latest) == (10, 10, 3)
    assert all(name.endswith("-delete") for name in directories_of_t(before.directory))
    assert not (Path(partition.log.path) / COMPLETE).exists()
    assert produced(harness.produce(acks=-1)).base_offset == 10
    assert harness.base_offsets(11) == list(range(11))


def test_a_move_copies_whole_batches_from_the_log_start_offset(harness: MoveHarness) -> None:
    harness.create()
    for _ in range(4):
        harness.produce(records=batch(5), acks=1)
    harness.replicas.delete_records("t", 0, 7, harness.wall_ms).result()
    harness.start_move()
    log = harness.log
    assert (log.log_start_offset, log.open().engine.start_offset, log.log_end_offset) == (7, 5, 20)
    assert fetched(harness.fetch(offset=6)).error_code == E.OFFSET_OUT_OF_RANGE


def test_a_move_obeys_the_rate_limit_and_its_changes(harness: MoveHarness) -> None:
    harness.create(**SMALL)  # chunks of a small segment
    harness.load(batches=10, size=300)
    harness.moves.rate_limiter.set_rate(100, harness.mono_ms)
    harness.start_move()
    for _ in range(3):
        (move,) = harness.moves.active.values()
        assert move.copy is not None
        copied = move.copy.log_end_offset
        harness.pass_time(20_000)
        assert copied < move.copy.log_end_offset
    harness.moves.rate_limiter.set_rate(0, harness.mono_ms)
    assert move.copy is not None
    copied = move.copy.log_end_offset
    harness.pass_time(60_000)
    assert move.copy.log_end_offset == copied
    harness.moves.rate_limiter.set_rate(1e9, harness.mono_ms)
    harness.pass_time(2_000)
    harness.pass_time(2_000)
    assert not harness.moves.active
    assert harness.base_offsets(10) == list(range(10))


def test_an_empty_partition_moves(harness: MoveHarness) -> None:
    harness.create()
    target = harness.start_move()
    assert harness.log.directory == target
    harness.load(batches=1)


def test_an_epoch_without_records_is_kept(harness: MoveHarness) -> None:
    harness.create(epoch=3)
    harness.load(batches=2)
    harness.change(leader=1, isr=[1])  # which begins epoch 4
    harness.start_move()
    log = harness.log
    log.open()
    assert harness.partition().leader_epoch == log.open().epochs.latest == 4
    assert log.open().end_offset_for_epoch(3) == (3, 2)


def test_the_producer_state_is_kept(harness: MoveHarness) -> None:
    harness.create()
    made = {"producer_id": 7, "producer_epoch": 0}
    produced(harness.produce(records=batch(2, base_sequence=0, **made)))
    harness.start_move()

    def append(sequence: int) -> tuple[int, int]:
        answer = produced(harness.produce(records=batch(2, base_sequence=sequence, **made)))
        return answer.error_code, answer.base_offset

    assert [append(0), append(5), append(2)] == [(E.NONE, 0), (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (E.NONE, 2)]


def test_appends_between_any_two_steps_are_kept_in_order_and_the_move_ends(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, **SMALL)
    target = harness.start_move()
    answers: list[Answer] = []
    while harness.moves.active:
        harness.executor.step()
        answers.append(harness.produce(acks=1))
        assert len(answers) < MAX_STEPS, "the move ends"
    harness.executor.run_all()
    assert harness.log.directory == target
    assert [produced(answer).base_offset for answer in answers] == list(range(1, len(answers) + 1))
    assert harness.log.open().engine.end_offset == len(answers) + 1


def test_a_move_waits_for_compaction_and_appends_do_not(stepped: MoveHarness) -> None:
    log = stepped.log
    log.is_being_cleaned = True
    stepped.start_move()
    for _ in range(3):
        stepped.executor.run_all()
        answer = stepped.produce(acks=1)
        stepped.executor.run_all()
        assert produced(answer).error_code == E.NONE
        stepped.pass_time(CLEANING_CHECK_MS)
    assert stepped.log is log
    log.is_being_cleaned = False
    stepped.pass_time(CLEANING_CHECK_MS)
    stepped.executor.run_all()
    assert stepped.log is not log
    assert stepped.base_offsets(4) == list(range(4))


def test_a_move_restarts_when_its_next_records_are_deleted(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, **SMALL)
    for _ in range(5):
        harness.produce(records=batch(size=900), acks=1)
        harness.executor.run_all()
    target = harness.start_move()
    harness.step_until_copied()
    harness.replicas.delete_records("t", 0, 5, harness.wall_ms).result()
    harness.executor.run_all()
    log = harness.log
    assert log.directory == target
    assert (log.open().engine.start_offset, log.log_start_offset, log.log_end_offset) == (5, 5, 6)


# ---- requests ----------------------------------------------------------------------------------------------


def test_error_codes_are_those_of_apache_kafka(tmp_path: Path) -> None:
    """ReplicaManager.alterReplicaLogDirs of Kafka 4.3."""
    harness = ReplicaHarness(tmp_path, directories=3)
    first, second, third = harness.log_manager.directories
    harness.create("t", 2)
    harness.create("remote", replicas=(2,), leader=2)
    alter = harness.moves.alter
    assert alter("t", 0, first) == E.NONE
    assert alter("t", 0, "/nowhere") == E.LOG_DIR_NOT_FOUND
    assert alter("t", 9, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("nope", 0, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("remote", 0, first) == E.REPLICA_NOT_AVAILABLE
    assert alter("n" * 213, 0, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("n" * 214, 0, first) == E.INVALID_TOPIC_EXCEPTION
    harness.log_manager.placement.cordoned = frozenset([second])
    assert alter("t", 0, second) == E.INVALID_REPLICA_ASSIGNMENT
    harness.replicas.directory_failed(third, io_error(third))
    assert alter("t", 0, third) == E.KAFKA_STORAGE_ERROR


def test_no_move_starts_while_a_directory_is_offline(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, directories=3)
    first, second, third = harness.log_manager.directories
    harness.create(partitions=3)
    harness.replicas.directory_failed(third, io_error(third))
    codes = [harness.moves.alter("t", index, second) for index in range(3)]
    found = {harness.partition(index=index).log.directory: code for index, code in enumerate(codes)}
    assert found == {first: E.KAFKA_STORAGE_ERROR, second: E.NONE, third: E.KAFKA_STORAGE_ERROR}


def test_the_preferred_directories_of_future_partitions_are_used_up_to_a_limit(
    harness: MoveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.directories.log_placement.MAX_REMEMBERED", 2)
    _, second = harness.log_manager.directories
    for name in ("a", "b", "c"):
        harness.moves.alter(name, 0, second)
    for name in ("a", "b", "c", "d"):
        harness.create(name)
    found = {name: harness.partition(name).log.directory == second for name in "abc"}
    assert found == {"a": False, "b": True, "c": True}


def test_a_request_for_another_directory_cancels_the_move(stepped: MoveHarness) -> None:
    log, target = stepped.log, stepped.start_move()
    stepped.step_until_copied()
    assert stepped.moves.alter("t", 0, target) == E.NONE  # continues
    assert len(stepped.moves.active) == 1
    assert [name.endswith(FUTURE) for name in directories_of_t(target)] == [True]
    assert stepped.moves.alter("t", 0, log.directory) == E.NONE
    stepped.executor.run_all()
    assert stepped.log is log
    stepped.run_deletions()
    assert directories_of_t(target) == []


@pytest.mark.parametrize("steps", range(26))
def test_appends_continue_after_a_cancelled_move(stepped: MoveHarness, steps: int) -> None:
    here = stepped.log.directory
    stepped.start_move(steps)
    answer = stepped.produce(acks=1)
    stepped.moves.alter("t", 0, here)
    stepped.executor.run_all()
    assert produced(answer).error_code == E.NONE
    assert stepped.log.directory == here


@pytest.mark.parametrize("steps", range(26))
def test_a_recreated_topic_moves_independently(stepped: MoveHarness, steps: int) -> None:
    stepped.start_move(steps)
    stepped.delete()
    stepped.create()
    answer = stepped.produce(acks=1)
    target = stepped.start_move()
    stepped.executor.run_all()
    assert produced(answer).error_code == E.NONE
    assert stepped.log.directory == target
    assert stepped.base_offsets(1) == [0]
    assert not stepped.moves.active
    assert not stepped.log_manager.future_logs
    assert not stepped.log_manager.offline


def test_a_copy_created_for_a_cancelled_move_is_deleted(tmp_path: Path) -> None:
    harness = stepped_harness(tmp_path, directories=3)
    executor = harness.executor
    here, first = harness.log.directory, harness.start_move()
    (second,) = set(harness.log_manager.directories) - {here, first}
    while executor.work[0].directory != first:
        executor.step()
    late = executor.work.popleft()
    harness.moves.alter("t", 0, second)
    harness.step_until_copied()
    executor.work.appendleft(late)
    executor.run_all()
    assert harness.log.directory == second
    assert not harness.log_manager.future_logs
    harness.run_deletions()
    assert directories_of_t(first) == []


@pytest.mark.parametrize("steps", range(26))
def test_deleting_a_topic_deletes_its_copy(stepped: MoveHarness, steps: int) -> None:
    stepped.start_move(steps)
    stepped.delete()
    stepped.executor.run_all()
    assert not stepped.moves.active
    assert not stepped.log_manager.future_logs
    stepped.run_deletions(later_ms=600_000)
    stepped.run_deletions(later_ms=1_200_000)
    assert [directories_of_t(directory) for directory in stepped.log_manager.directories] == [[], []]
    assert not stepped.log_manager.offline


@pytest.mark.parametrize("steps", range(26))
@pytest.mark.parametrize("failing", ["log", "copy"])
def test_a_failed_directory_cancels_the_move_and_leaves_the_other_online(
    tmp_path: Path, steps: int, failing: str
) -> None:
    harness = stepped_harness(tmp_path, partitions=2)
    executor = harness.executor
    harness.produce(index=1, acks=1)
    executor.run_all()
    here, target = harness.log.directory, harness.start_move(steps)
    executor.broken = here if failing == "log" else target
    answer = harness.produce(acks=1)
    executor.run_all()
    if executor.broken not in harness.log_manager.offline:  # not used since
        harness.replicas.directory_failed(executor.broken, io_error(executor.broken))
        executor.run_all()
    assert not harness.moves.active
    assert answer.is_done
    assert list(harness.log_manager.offline) == [executor.broken]
    for index in (0, 1):
        partition = harness.partition(index=index)
        assert partition.is_offline is (partition.log.directory == executor.broken)
        if not partition.is_offline:
            last = harness.produce(index=index, acks=1)
            executor.run_all()
            assert produced(last).error_code == E.NONE


class NoTable(Disk):
    """Fails to write the leader epochs of a copy that is closed."""

    def commit_temporary(self, path: str, beside: str = TEMPORARY) -> None:
        if FUTURE in path and path.endswith(LEADER_EPOCHS) and beside != TEMPORARY:
            raise StorageError("rename", path, OSError(5, "I/O error"))
        super().commit_temporary(path, beside)


def test_a_copy_whose_close_fails_does_not_replace_the_log(tmp_path: Path) -> None:
    harness = MoveHarness(tmp_path, directories=2, disk=NoTable())
    harness.create()
    harness.produce(records=batch(5), acks=1)
    harness.replicas.delete_records("t", 0, 2, harness.wall_ms).result()
    here, target = harness.log.directory, harness.start_move()
    assert list(harness.log_manager.offline) == [target]
    assert not harness.moves.active
    assert harness.log.directory == here
    assert produced(harness.produce(acks=1)).error_code == E.NONE


# ---- crashes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", range(CHANGES_OF_A_MOVE + 1))
def test_a_crash_during_a_move_leaves_one_complete_log(tmp_path: Path, changes: int) -> None:
    disk = CrashingDisk()
    harness = MoveHarness(tmp_path, directories=2, disk=disk)
    harness.create()
    harness.load(batches=3)
    directories = list(harness.log_manager.directories)
    target = directories[1]
    disk.fuse = changes
    with pytest.raises(PowerLoss) if changes < CHANGES_OF_A_MOVE else contextlib.nullcontext():
        harness.start_move()
    again = LogManager(Disk(), dict.fromkeys(directories, bytes(16)), LogConfig(), random_bytes=bytes)
    again.load()
    assert list(again.logs) == [("t", 0)]
    log = again.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    interrupted = take_interrupted_moves(again)
    assert interrupted in ([], [(("t", 0), target)])
    assert not (interrupted and log.directory == target)
    delete(again, NOW_MS)
    assert [name for directory in directories for name in directories_of_t(directory)] == ["t-0"]


@pytest.mark.parametrize("steps", range(12))
def test_stopped_moves_let_the_broker_close_its_logs_and_start_again(stepped: MoveHarness, steps: int) -> None:
    target = stepped.start_move(steps)
    stepped.moves.is_stopped = True
    is_moved = not stepped.moves.active
    stepped.executor.run_all()
    stepped.log_manager.shutdown()
    again = LogManager(
        Disk(), dict.fromkeys([*stepped.log_manager.directories], bytes(16)), LogConfig(), random_bytes=bytes
    )
    again.load()
    log = again.logs["t", 0]
    assert not log.needs_recovery
    assert (log.directory == target, log.log_end_offset) == (is_moved, 1)
    assert take_interrupted_moves(again) in ([], [(("t", 0), target)])


def test_interrupted_moves_start_again_and_their_old_copies_are_deleted(harness: MoveHarness) -> None:
    """Apache Kafka does not start with two copies of a log."""
    harness.create()
    harness.load(batches=3)
    _, target = harness.log_manager.directories
    lost = [Path(target) / f"t-0.{digit * 32}{FUTURE}" for digit in "01"]
    for path in lost:
        path.mkdir()
        harness.log_manager.interrupted_moves.append((("t", 0), str(path)))
    harness.moves.resume()
    assert harness.log.directory == target
    assert [name.endswith(FUTURE) for name in directories_of_t(target)] == [False] * 3
    harness.run_deletions()
    assert directories_of_t(target) == ["t-0"]


@pytest.mark.parametrize("is_recreated", [False, True])
def test_the_move_of_a_deleted_topic_is_forgotten_and_its_copy_deleted(tmp_path: Path, *, is_recreated: bool) -> None:
    """The topic was deleted while the node was down, and perhaps another one has its name now."""
    harness = MoveHarness(tmp_path, directories=2)
    harness.create()
    harness.load(batches=3)
    target = next(path for path in harness.log_manager.directories if path != harness.log.directory)
    harness.log_manager.shutdown()
    (Path(target) / f"t-0.{'0' * 32}{FUTURE}").mkdir()
    again = MoveHarness(tmp_path, directories=2)
    again.create("u")
    if is_recreated:
        again.log_manager.placement.prefer(("t", 0), harness.log.directory)
        again.create()
    again.replicas.rename_strays()
    again.moves.resume()
    again.run_deletions()
    assert directories_of_t(target) == []
    assert not is_recreated or again.log.directory == harness.log.directory


def test_a_copy_without_its_log_is_kept(tmp_path: Path) -> None:
    """The log may be in a directory that is not configured any more."""
    lost = tmp_path / f"t-0.{'0' * 32}{FUTURE}"
    lost.mkdir()
    manager = LogManager(Disk(), {str(tmp_path): bytes(16)}, LogConfig(), random_bytes=bytes)
    manager.load()
    assert take_interrupted_moves(manager) == []
    assert manager.logs == {}
    delete(manager, NOW_MS)
    assert lost.exists()


def test_only_names_of_future_directories_are_parsed() -> None:
    assert parse_future_dir_name(f"a.b-c-12.{'0a' * 16}{FUTURE}") == ("a.b-c", 12)
    for name in ("t-0", f"t-0.{'0' * 32}-delete", f"t-0.{'0' * 31}{FUTURE}", f"t.{'0' * 32}{FUTURE}"):
        assert parse_future_dir_name(name) is None


def test_a_log_of_many_chunks_is_copied(harness: MoveHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.directories.log_copy.CHUNK_BYTES", 1000)
    harness.create()
    for _ in range(8):
        harness.produce(records=batch(20, 100), acks=1)
    harness.start_move()
    assert harness.log.log_end_offset == 160
    assert harness.log.open().engine.size_bytes == 8 * len(batch(20, 100))


def test_few_of_many_moves_have_their_checkpoint_in_memory(tmp_path: Path) -> None:
    """Each contains the offsets of all logs in the directory: of thousands of moves they would fill the memory."""
    harness = stepped_harness(tmp_path, partitions=30)
    target = next(path for path in harness.log_manager.directories if path != harness.log.directory)
    moved = [index for index in range(30) if harness.partition(index=index).log.directory != target]
    for index in moved:
        assert harness.moves.alter("t", index, target) == E.NONE
    checkpoints, most = harness.log_manager.directories[target].checkpoints, 0
    while harness.executor.work:
        harness.executor.step()
        most = max(most, len(checkpoints._unwritten))
    assert 0 < most <= MAX_SWITCHES < len(moved)
    assert all(harness.partition(index=index).log.directory == target for index in range(30))
    assert not harness.moves.active
