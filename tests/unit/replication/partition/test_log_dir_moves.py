"""The rules of `LogDirMoves` and `future_replica.py`, on real logs."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.stored_records import BrokerRegistrationChangeRecord
from protocol.records import BatchBuilder
from replication.io_executor import Begin, IoCallback, Run
from storage.config.log_config import LogConfig
from storage.directories.future_replica import COMPLETE, FUTURE, parse_future_dir_name
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import TEMPORARY, Disk, StorageError
from storage.log.log import Log
from tests.support.replica_harness import NOW_MS, ReplicaHarness, batch, fetched, offsets, produced

E = ErrorCode
SMALL = {"internal_segment_bytes": 1000}
MAX_STEPS = 2000
"""A move that takes more steps never ends."""


class SteppedExecutor:
    """Runs queued work when the test says so."""

    def __init__(self) -> None:
        self.work: deque[tuple[str, Run, IoCallback]] = deque()
        self.broken = ""

    def write(self, directory: str, size: int, run: Run, done: IoCallback) -> None:
        self.work.append((directory, run, done))

    def sync(self, directory: str, begin: Begin, done: IoCallback) -> None:
        self.read(directory, begin(), done)

    def read(self, directory: str, run: Run, done: IoCallback) -> None:
        self.work.append((directory, run, done))

    directory_op = background = read

    def step(self) -> None:
        """Run the next piece of work; the work of the directory `broken` fails."""
        directory, run, done = self.work.popleft()
        error = StorageError("use", directory, OSError(5, "Input/output error")) if directory == self.broken else None
        if error is None:
            run()
        done(error)

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


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    return ReplicaHarness(tmp_path, directories=2)


@pytest.fixture
def stepped(tmp_path: Path) -> tuple[ReplicaHarness, SteppedExecutor]:
    executor = SteppedExecutor()
    return ReplicaHarness(tmp_path, worker=executor, directories=2), executor


def other_directory(harness: ReplicaHarness, name: str = "t", index: int = 0) -> str:
    """The log directory that does not hold a partition."""
    here = harness.partition(name, index).log.directory
    return next(path for path in harness.log_manager.directories if path != here)


def names(path: str) -> list[str]:
    return sorted(entry.name for entry in Path(path).iterdir())


def start_move(stepped: tuple[ReplicaHarness, SteppedExecutor], steps: int) -> tuple[ReplicaHarness, SteppedExecutor]:
    """Create a partition with one batch, and run some steps of its move."""
    harness, executor = stepped
    harness.create()
    harness.produce(acks=1)
    executor.run_all()
    harness.moves.alter("t", 0, other_directory(harness))
    executor.run_steps(steps)
    return harness, executor


def base_offsets(harness: ReplicaHarness, name: str = "t", end: int = 0) -> list[int]:
    """Base offsets of all batches from the log start offset."""
    found: list[int] = []
    position = harness.partition(name).log.log_start_offset
    while position < end:
        data = fetched(harness.fetch(name, 0, position, max_wait_ms=0))
        assert data.error_code == E.NONE
        got = offsets(data)
        if not got:
            break
        found += got
        position = got[-1] + 1
    return found


# ---- moving ----------------------------------------------------------------------------------------------


def test_a_move_keeps_records_epochs_and_watermarks_and_deletes_the_old_directory(harness: ReplicaHarness) -> None:
    harness.create(epoch=3, **SMALL)
    harness.load(batches=10, size=300)
    before = harness.partition().log
    target = other_directory(harness)
    assert harness.moves.alter("t", 0, target) == E.NONE
    partition = harness.partition()
    assert partition.log is not before
    assert (partition.log.directory, partition.log.path) == (target, f"{target}/t-0")
    assert not harness.moves.active
    assert not harness.log_manager.future_logs
    assert base_offsets(harness, end=10) == list(range(10))
    assert (partition.high_watermark, partition.log.high_watermark, partition.log.latest_epoch) == (10, 10, 3)
    assert [name for name in names(before.directory) if name.startswith("t-0")] == [
        name for name in names(before.directory) if name.endswith("-delete")
    ]
    assert COMPLETE not in names(partition.log.path)
    assert produced(harness.produce(acks=-1)).base_offset == 10
    assert base_offsets(harness, end=11) == list(range(11))


def test_a_move_copies_whole_batches_from_the_log_start_offset(harness: ReplicaHarness) -> None:
    harness.create()
    for _ in range(4):
        harness.produce(records=batch(5), acks=1)
    harness.replicas.delete_records("t", 0, 7, harness.wall_ms)
    harness.moves.alter("t", 0, other_directory(harness))
    log = harness.partition().log
    assert (log.log_start_offset, log.open().start_offset, log.log_end_offset) == (7, 5, 20)
    assert fetched(harness.fetch(offset=6)).error_code == E.OFFSET_OUT_OF_RANGE


def test_a_move_obeys_the_rate_limit_and_its_changes(harness: ReplicaHarness) -> None:
    harness.create(**SMALL)  # chunks of a small segment
    harness.load(batches=10, size=300)
    harness.moves.rate_limiter.set_rate(100, harness.mono_ms)
    harness.moves.alter("t", 0, other_directory(harness))
    for _ in range(3):
        (move,) = harness.moves.active.values()
        assert move.copy is not None
        copied = move.copy.log_end_offset
        harness.pass_time(20_000)
        assert copied < move.copy.log_end_offset
    harness.moves.rate_limiter.set_rate(0, harness.mono_ms)
    copied = move.copy.log_end_offset
    harness.pass_time(60_000)
    assert move.copy.log_end_offset == copied
    harness.moves.rate_limiter.set_rate(1e9, harness.mono_ms)
    harness.pass_time(2_000)
    harness.pass_time(2_000)
    assert not harness.moves.active
    assert base_offsets(harness, end=10) == list(range(10))


def test_an_empty_partition_moves(harness: ReplicaHarness) -> None:
    harness.create()
    harness.moves.alter("t", 0, other_directory(harness))
    assert harness.partition().log.directory == list(harness.log_manager.directories)[1]
    harness.load(batches=1)


def test_an_epoch_without_records_is_kept(harness: ReplicaHarness) -> None:
    harness.create(epoch=3)
    harness.load(batches=2)
    harness.change(leader=1, isr=[1])  # which begins epoch 4
    harness.moves.alter("t", 0, other_directory(harness))
    log = harness.partition().log
    log.open()
    assert harness.partition().leader_epoch == log.latest_epoch == 4
    assert log.end_offset_for_epoch(3) == (3, 2)


def test_the_producer_state_is_kept(harness: ReplicaHarness) -> None:
    harness.create()
    made = {"producer_id": 7, "producer_epoch": 0}
    produced(harness.produce(records=batch(2, base_sequence=0, **made)))
    harness.moves.alter("t", 0, other_directory(harness))
    again = produced(harness.produce(records=batch(2, base_sequence=0, **made)))
    assert (again.error_code, again.base_offset) == (E.NONE, 0)
    assert (
        produced(harness.produce(records=batch(2, base_sequence=5, **made))).error_code
        == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert produced(harness.produce(records=batch(2, base_sequence=2, **made))).base_offset == 2


def test_appends_between_any_two_steps_are_kept_in_order_and_the_move_ends(
    stepped: tuple[ReplicaHarness, SteppedExecutor],
) -> None:
    harness, executor = stepped
    harness.create(**SMALL)
    executor.run_all()
    answers = [harness.produce(acks=1)]
    executor.run_all()
    target = other_directory(harness)
    assert harness.moves.alter("t", 0, target) == E.NONE
    steps = 0
    while harness.moves.active:
        executor.step()
        steps += 1
        answers.append(harness.produce(acks=1))
        assert steps < MAX_STEPS, "the move ends"
    executor.run_all()
    assert harness.partition().log.directory == target
    assert [produced(answer).base_offset for answer in answers] == list(range(len(answers)))
    found = harness.partition().log
    assert found.open().end_offset == len(answers)


def test_a_move_waits_for_compaction(stepped: tuple[ReplicaHarness, SteppedExecutor]) -> None:
    harness, executor = stepped
    harness.create()
    harness.produce(acks=1)
    executor.run_all()
    log = harness.partition().log
    log.is_being_cleaned = True
    harness.moves.alter("t", 0, other_directory(harness))
    for _ in range(200):
        executor.step()
    assert harness.partition().log is log
    log.is_being_cleaned = False
    executor.run_all()
    assert harness.partition().log is not log


def test_a_move_restarts_when_its_next_records_are_deleted(stepped: tuple[ReplicaHarness, SteppedExecutor]) -> None:
    harness, executor = stepped
    harness.create(**SMALL)
    for _ in range(5):
        harness.produce(records=batch(size=900), acks=1)
        executor.run_all()
    harness.moves.alter("t", 0, other_directory(harness))
    while not harness.log_manager.future_logs:
        executor.step()
    harness.replicas.delete_records("t", 0, 4, harness.wall_ms)
    executor.run_all()
    log = harness.partition().log
    assert log.directory == list(harness.log_manager.directories)[1]
    log.open()
    assert (log.log_start_offset, log.open().start_offset, log.log_end_offset) == (4, 4, 5)


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
    ids = [directory.directory_id for directory in harness.log_manager.directories.values()]
    harness.apply(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, log_dirs=ids, cordoned_log_dirs=[ids[1]])
    )
    assert alter("t", 0, second) == E.INVALID_REPLICA_ASSIGNMENT
    harness.replicas.directory_failed(third, StorageError("use", third, OSError(5, "Input/output error")))
    assert alter("t", 0, third) == E.KAFKA_STORAGE_ERROR


def test_no_move_starts_while_a_directory_is_offline(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, directories=3)
    first, second, third = harness.log_manager.directories
    harness.create(partitions=3)
    harness.replicas.directory_failed(third, StorageError("use", third, OSError(5, "Input/output error")))
    codes = [harness.moves.alter("t", index, second) for index in range(3)]
    found = {harness.partition(index=index).log.directory: code for index, code in enumerate(codes)}
    assert found == {first: E.KAFKA_STORAGE_ERROR, second: E.NONE, third: E.KAFKA_STORAGE_ERROR}


def test_the_preferred_directory_of_a_future_partition_is_used(harness: ReplicaHarness) -> None:
    _, second = harness.log_manager.directories
    for name in ("a", "b"):
        assert harness.moves.alter(name, 0, second) == E.UNKNOWN_TOPIC_OR_PARTITION
    harness.create("a")
    harness.create("b")
    assert [harness.partition(name).log.directory for name in ("a", "b")] == [second, second]


def test_the_number_of_preferred_directories_is_limited(
    harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.directories.log_manager.MAX_REMEMBERED", 2)
    _, second = harness.log_manager.directories
    for name in ("a", "b", "c"):
        harness.moves.alter(name, 0, second)
    for name in ("a", "b", "c", "d"):
        harness.create(name)
    found = {name: harness.partition(name).log.directory == second for name in "abc"}
    assert found == {"a": False, "b": True, "c": True}


def test_a_request_for_another_directory_cancels_the_move(stepped: tuple[ReplicaHarness, SteppedExecutor]) -> None:
    harness, executor = stepped
    harness.create()
    executor.run_all()
    log, target = harness.partition().log, other_directory(harness)
    harness.moves.alter("t", 0, target)
    while not harness.log_manager.future_logs:
        executor.step()
    assert harness.moves.alter("t", 0, target) == E.NONE  # continues
    assert len(harness.moves.active) == 1
    assert [name for name in names(target) if name.endswith(FUTURE)]
    assert harness.moves.alter("t", 0, log.directory) == E.NONE
    executor.run_all()
    assert harness.partition().log is log
    for _, work in harness.log_manager.deletions(harness.wall_ms):
        work()
    assert not [name for name in names(target) if name.startswith("t-0")]


@pytest.mark.parametrize("steps", range(26))
def test_appends_continue_after_a_cancelled_move(stepped: tuple[ReplicaHarness, SteppedExecutor], steps: int) -> None:
    harness, executor = stepped
    harness.create()
    executor.run_all()
    here = harness.partition().log.directory
    harness.moves.alter("t", 0, other_directory(harness))
    executor.run_steps(steps)
    answer = harness.produce(acks=1)
    harness.moves.alter("t", 0, here)
    executor.run_all()
    assert produced(answer).error_code == E.NONE
    assert harness.partition().log.directory == here


@pytest.mark.parametrize("steps", range(26))
def test_a_recreated_topic_moves_independently(stepped: tuple[ReplicaHarness, SteppedExecutor], steps: int) -> None:
    harness, executor = start_move(stepped, steps)
    harness.delete()
    harness.create()
    answer = harness.produce(acks=1)
    target = other_directory(harness)
    assert harness.moves.alter("t", 0, target) == E.NONE
    executor.run_all()
    assert produced(answer).error_code == E.NONE
    assert harness.partition().log.directory == target
    assert base_offsets(harness, end=1) == [0]
    assert not harness.moves.active
    assert not harness.log_manager.future_logs
    assert not harness.log_manager.offline


def test_a_copy_created_for_a_cancelled_move_is_deleted(tmp_path: Path) -> None:
    executor = SteppedExecutor()
    harness = ReplicaHarness(tmp_path, worker=executor, directories=3)
    harness.create()
    harness.produce(acks=1)
    executor.run_all()
    first, second = [path for path in harness.log_manager.directories if path != harness.partition().log.directory]
    harness.moves.alter("t", 0, first)
    while executor.work[0][0] != first:
        executor.step()
    late = executor.work.popleft()
    harness.moves.alter("t", 0, second)
    while not harness.log_manager.future_logs:
        executor.step()
    executor.work.appendleft(late)
    executor.run_all()
    assert harness.partition().log.directory == second
    assert not harness.log_manager.future_logs
    for _, work in harness.log_manager.deletions(harness.wall_ms):
        work()
    assert not [name for name in names(first) if name.startswith("t-0")]


@pytest.mark.parametrize("steps", range(26))
def test_deleting_a_topic_deletes_its_copy(stepped: tuple[ReplicaHarness, SteppedExecutor], steps: int) -> None:
    harness, executor = start_move(stepped, steps)
    harness.delete()
    executor.run_all()
    assert not harness.moves.active
    assert not harness.log_manager.future_logs
    for _ in range(2):
        for _, work in harness.log_manager.deletions(harness.wall_ms + 600_000):
            work()
        harness.wall_ms += 600_000
    for directory in harness.log_manager.directories:
        assert not [name for name in names(directory) if name.startswith("t-0")]
    assert not harness.log_manager.offline


@pytest.mark.parametrize("steps", range(26))
@pytest.mark.parametrize("failing", ["log", "copy"])
def test_a_failed_directory_cancels_the_move_and_leaves_the_other_online(
    stepped: tuple[ReplicaHarness, SteppedExecutor], steps: int, failing: str
) -> None:
    harness, executor = stepped
    harness.create(partitions=2)
    for index in (0, 1):
        harness.produce(index=index, acks=1)
    executor.run_all()
    here, target = harness.partition().log.directory, other_directory(harness)
    harness.moves.alter("t", 0, target)
    executor.run_steps(steps)
    executor.broken = here if failing == "log" else target
    answer = harness.produce(acks=1)
    executor.run_all()
    if executor.broken not in harness.log_manager.offline:  # not used since
        harness.replicas.directory_failed(
            executor.broken, StorageError("use", executor.broken, OSError(5, "I/O error"))
        )
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
    harness = ReplicaHarness(tmp_path, directories=2, disk=NoTable())
    harness.create()
    harness.produce(records=batch(5), acks=1)
    harness.replicas.delete_records("t", 0, 2, harness.wall_ms)
    here, target = harness.partition().log.directory, other_directory(harness)
    harness.moves.alter("t", 0, target)
    assert list(harness.log_manager.offline) == [target]
    assert not harness.moves.active
    assert harness.partition().log.directory == here
    assert produced(harness.produce(acks=1)).error_code == E.NONE


# ---- crashes ---------------------------------------------------------------------------------------------


class Crash(Exception):
    """The process ends."""


class CrashingDisk(Disk):
    """Crashes before the n-th rename or deletion."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        self._count()
        super().unlink(path, missing_ok=missing_ok)


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_crash_during_a_move_leaves_one_complete_log(tmp_path: Path, steps: int) -> None:
    disk = CrashingDisk()
    harness = ReplicaHarness(tmp_path, directories=2, disk=disk)
    harness.create()
    harness.load(batches=3)
    directories = list(harness.log_manager.directories)
    target = other_directory(harness)
    disk.left = steps
    with contextlib.suppress(Crash):
        harness.moves.alter("t", 0, target)
    again = LogManager(Disk(), dict.fromkeys(directories, bytes(16)), LogConfig(), random_bytes=bytes)
    again.load()
    assert list(again.logs) == [("t", 0)]
    log = again.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    interrupted = again.take_interrupted_moves()
    assert interrupted in ([], [(("t", 0), target)])
    assert not (interrupted and log.directory == target)
    for _, work in again.deletions(NOW_MS):
        work()
    left = [name for directory in directories for name in names(directory) if name.startswith("t-0")]
    assert left == ["t-0"]


def test_interrupted_moves_start_again_and_their_old_copies_are_deleted(tmp_path: Path) -> None:
    """Apache Kafka does not start with two copies of a log."""
    harness = ReplicaHarness(tmp_path, directories=2)
    harness.create()
    harness.load(batches=3)
    target = other_directory(harness)
    lost = [Path(target) / f"t-0.{digit * 32}{FUTURE}" for digit in "01"]
    for path in lost:
        path.mkdir()
        harness.log_manager._interrupted.append((("t", 0), str(path)))
    harness.moves.resume()
    assert harness.partition().log.directory == target
    assert [name.endswith(FUTURE) for name in names(target) if name.startswith("t-0.")] == [False, False]
    for _, work in harness.log_manager.deletions(harness.wall_ms):
        work()
    assert [name for name in names(target) if name.startswith("t-0")] == ["t-0"]


def test_a_copy_without_its_log_is_kept(tmp_path: Path) -> None:
    """The log may be in a directory that is not configured any more."""
    lost = tmp_path / f"t-0.{'0' * 32}{FUTURE}"
    lost.mkdir()
    manager = LogManager(Disk(), {str(tmp_path): bytes(16)}, LogConfig(), random_bytes=bytes)
    manager.load()
    assert manager.take_interrupted_moves() == []
    assert manager.logs == {}
    for _, work in manager.deletions(NOW_MS):
        work()
    assert lost.exists()


def test_future_directory_names() -> None:
    assert parse_future_dir_name(f"a.b-c-12.{'0a' * 16}{FUTURE}") == ("a.b-c", 12)
    for name in ("t-0", f"t-0.{'0' * 32}-delete", f"t-0.{'0' * 31}{FUTURE}", f"t.{'0' * 32}{FUTURE}"):
        assert parse_future_dir_name(name) is None


def test_a_log_of_many_chunks_is_copied(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.partition.log_dir_moves.CHUNK_BYTES", 1000)
    harness.create()
    builder = BatchBuilder()
    for number in range(20):
        builder.append(NOW_MS, b"%d" % number, bytes(100))
    made = builder.build()
    for _ in range(8):
        harness.produce(records=bytearray(made), acks=1)
    harness.moves.alter("t", 0, other_directory(harness))
    log: Log = harness.partition().log
    assert log.log_end_offset == 160
    assert log.size_bytes == 8 * len(made)
