"""Rules of replication/partition/log_dir_moves.py and storage/directories/future_replica.py, on real logs."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.stored_records import BrokerRegistrationChangeRecord
from protocol.records import BatchBuilder
from replication.io_executor import Begin, Done, Run
from storage.config.log_config import LogConfig
from storage.directories.future_replica import COMPLETE, FUTURE, copy_of
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import TEMPORARY, Disk, StorageError
from storage.log.log import Log
from tests.support.replica_harness import NOW_MS, World, batch, fetched, offsets, produced

E = ErrorCode
SMALL = {"internal_segment_bytes": 1000}
MOST_PIECES = 2000
"""No move here takes nearly as many; one that takes more goes on for ever."""


class Turns:
    """A worker whose work is done when the test says so, one piece after the other."""

    def __init__(self) -> None:
        self.work: deque[tuple[str, Run, Done]] = deque()
        self.broken = ""

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        self.work.append((directory, run, done))

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        self.read(directory, begin(), done)

    def read(self, directory: str, run: Run, done: Done) -> None:
        self.work.append((directory, run, done))

    name = background = read

    def turn(self) -> None:
        """Do the next piece."""
        directory, run, done = self.work.popleft()
        error = StorageError("use", directory, OSError(5, "Input/output error")) if directory == self.broken else None
        if error is None:
            run()
        done(error)

    def run(self) -> None:
        """Do everything, and what comes of it, which has an end."""
        for _ in range(MOST_PIECES):
            if not self.work:
                return
            self.turn()
        raise AssertionError("a move goes on for ever")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, directories=2)


def other(world: World, name: str = "t", index: int = 0) -> str:
    """The log directory in which a partition does not lie."""
    here = world.partition(name, index).log.directory
    return next(path for path in world.log_manager.directories if path != here)


def names(path: str) -> list[str]:
    return sorted(entry.name for entry in Path(path).iterdir())


def everything(world: World, name: str = "t", end: int = 0) -> list[int]:
    """Base offsets of all batches, from the log's start on."""
    found: list[int] = []
    position = world.partition(name).log.log_start_offset
    while position < end:
        data = fetched(world.fetch(name, 0, position, max_wait_ms=0))
        assert data.error_code == E.NONE
        got = offsets(data)
        if not got:
            break
        found += got
        position = got[-1] + 1
    return found


# ---- moving ----------------------------------------------------------------------------------------------


def test_a_partition_moves_with_all_its_records(world: World) -> None:
    """Rule 1: batches, epochs, watermarks and where it begins; the old directory is renamed for deletion."""
    world.create(epoch=3, **SMALL)
    world.load(batches=10, size=300)
    before = world.partition().log
    target = other(world)
    assert world.moves.alter("t", 0, target) == E.NONE
    partition = world.partition()
    assert partition.log is not before
    assert (partition.log.directory, partition.log.path) == (target, f"{target}/t-0")
    assert not world.moves.under_way
    assert not world.log_manager.copies
    assert everything(world, end=10) == list(range(10))
    assert (partition.high_watermark, partition.log.high_watermark, partition.log.latest_epoch) == (10, 10, 3)
    assert [name for name in names(before.directory) if name.startswith("t-0")] == [
        name for name in names(before.directory) if name.endswith("-delete")
    ]
    assert COMPLETE not in names(partition.log.path)
    assert produced(world.produce(acks=-1)).base_offset == 10
    assert everything(world, end=11) == list(range(11))


def test_what_is_before_the_start_stays_behind(world: World) -> None:
    """Whole batches are copied, from the one that holds the log's first record; the start is the same."""
    world.create()
    for _ in range(4):
        world.produce(records=batch(5), acks=1)
    world.replicas.delete_records("t", 0, 7, world.wall_ms)
    world.moves.alter("t", 0, other(world))
    log = world.partition().log
    assert (log.log_start_offset, log.open().start_offset, log.log_end_offset) == (7, 5, 20)
    assert fetched(world.fetch(offset=6)).error_code == E.OFFSET_OUT_OF_RANGE


def test_moves_are_no_faster_than_they_may_be(world: World) -> None:
    """Rule 5: chunk by chunk, and as soon as that is allowed at another pace."""
    world.create(**SMALL)  # chunks of a small segment
    world.load(batches=10, size=300)
    world.moves.throttle.set_rate(100, world.mono_ms)
    world.moves.alter("t", 0, other(world))
    for _ in range(3):
        (move,) = world.moves.under_way.values()
        assert move.copy is not None
        copied = move.copy.log_end_offset
        world.pass_time(20_000)
        assert copied < move.copy.log_end_offset
    world.moves.throttle.set_rate(0, world.mono_ms)
    copied = move.copy.log_end_offset
    world.pass_time(60_000)
    assert move.copy.log_end_offset == copied
    world.moves.throttle.set_rate(1e9, world.mono_ms)
    world.pass_time(2_000)
    world.pass_time(2_000)
    assert not world.moves.under_way
    assert everything(world, end=10) == list(range(10))


def test_an_empty_partition_moves(world: World) -> None:
    world.create()
    world.moves.alter("t", 0, other(world))
    assert world.partition().log.directory == list(world.log_manager.directories)[1]
    world.load(batches=1)


def test_an_epoch_without_records_is_known_in_the_new_place(world: World) -> None:
    """It stands in no batch, so the leader says it again."""
    world.create(epoch=3)
    world.load(batches=2)
    world.change(leader=1, isr=[1])  # which begins epoch 4
    world.moves.alter("t", 0, other(world))
    log = world.partition().log
    log.open()
    assert world.partition().leader_epoch == log.latest_epoch == 4
    assert log.end_offset_for_epoch(3) == (3, 2)


def test_a_producers_sequence_goes_on(world: World) -> None:
    """What is known of idempotent producers moves with their batches."""
    world.create()
    made = {"producer_id": 7, "producer_epoch": 0}
    produced(world.produce(records=batch(2, base_sequence=0, **made)))
    world.moves.alter("t", 0, other(world))
    again = produced(world.produce(records=batch(2, base_sequence=0, **made)))
    assert (again.error_code, again.base_offset) == (E.NONE, 0)
    assert (
        produced(world.produce(records=batch(2, base_sequence=5, **made))).error_code == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert produced(world.produce(records=batch(2, base_sequence=2, **made))).base_offset == 2


def test_what_is_appended_meanwhile_is_there_too(tmp_path: Path) -> None:
    """An append between any two pieces of work, for ever: each is acknowledged, none is lost, their order is kept, and
    the move ends, because appends are held back at its end."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create(**SMALL)
    turns.run()
    answers = [world.produce(acks=1)]
    turns.run()
    target = other(world)
    assert world.moves.alter("t", 0, target) == E.NONE
    pieces = 0
    while world.moves.under_way:
        turns.turn()
        pieces += 1
        answers.append(world.produce(acks=1))
        assert pieces < MOST_PIECES, "a move ends"
    turns.run()
    assert world.partition().log.directory == target
    assert [produced(answer).base_offset for answer in answers] == list(range(len(answers)))
    found = world.partition().log
    assert found.open().end_offset == len(answers)


def test_a_log_that_is_compacted_meanwhile_is_waited_for(tmp_path: Path) -> None:
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create()
    world.produce(acks=1)
    turns.run()
    log = world.partition().log
    log.is_being_cleaned = True
    world.moves.alter("t", 0, other(world))
    for _ in range(200):
        turns.turn()
    assert world.partition().log is log
    log.is_being_cleaned = False
    turns.run()
    assert world.partition().log is not log


def test_records_that_are_deleted_before_they_are_copied_begin_it_anew(tmp_path: Path) -> None:
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create(**SMALL)
    for _ in range(5):
        world.produce(records=batch(size=900), acks=1)
        turns.run()
    world.moves.alter("t", 0, other(world))
    while not world.log_manager.copies:
        turns.turn()
    world.replicas.delete_records("t", 0, 4, world.wall_ms)
    turns.run()
    log = world.partition().log
    assert log.directory == list(world.log_manager.directories)[1]
    log.open()
    assert (log.log_start_offset, log.open().start_offset, log.log_end_offset) == (4, 4, 5)


# ---- wishes ----------------------------------------------------------------------------------------------


def test_refusals_are_kafkas(tmp_path: Path) -> None:
    """ReplicaManager.alterReplicaLogDirs of Kafka 4.3."""
    world = World(tmp_path, directories=3)
    first, second, third = world.log_manager.directories
    world.create("t", 2)
    world.create("remote", replicas=(2,), leader=2)
    alter = world.moves.alter
    assert alter("t", 0, first) == E.NONE
    assert alter("t", 0, "/nowhere") == E.LOG_DIR_NOT_FOUND
    assert alter("t", 9, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("nope", 0, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("remote", 0, first) == E.REPLICA_NOT_AVAILABLE
    assert alter("n" * 213, 0, first) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter("n" * 214, 0, first) == E.INVALID_TOPIC_EXCEPTION
    ids = [directory.directory_id for directory in world.log_manager.directories.values()]
    world.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=101, log_dirs=ids, cordoned_log_dirs=[ids[1]]))
    assert alter("t", 0, second) == E.INVALID_REPLICA_ASSIGNMENT
    world.replicas.directory_failed(third, StorageError("use", third, OSError(5, "Input/output error")))
    assert alter("t", 0, third) == E.KAFKA_STORAGE_ERROR


def test_nothing_moves_while_a_directory_is_offline(tmp_path: Path) -> None:
    """Rule 5; what lies in the offline one cannot be moved either."""
    world = World(tmp_path, directories=3)
    first, second, third = world.log_manager.directories
    world.create(partitions=3)
    world.replicas.directory_failed(third, StorageError("use", third, OSError(5, "Input/output error")))
    codes = [world.moves.alter("t", index, second) for index in range(3)]
    lie_in = {world.partition(index=index).log.directory: code for index, code in enumerate(codes)}
    assert lie_in == {first: E.KAFKA_STORAGE_ERROR, second: E.NONE, third: E.KAFKA_STORAGE_ERROR}


def test_a_partition_that_is_not_here_is_remembered(world: World) -> None:
    """Rule 4: its log is made there."""
    _, second = world.log_manager.directories
    for name in ("a", "b"):
        assert world.moves.alter(name, 0, second) == E.UNKNOWN_TOPIC_OR_PARTITION
    world.create("a")
    world.create("b")
    assert [world.partition(name).log.directory for name in ("a", "b")] == [second, second]


def test_no_more_are_remembered_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.directories.log_manager.MOST_REMEMBERED", 2)
    _, second = world.log_manager.directories
    for name in ("a", "b", "c"):
        world.moves.alter(name, 0, second)
    for name in ("a", "b", "c", "d"):
        world.create(name)
    lie_in = {name: world.partition(name).log.directory == second for name in "abc"}
    assert lie_in == {"a": False, "b": True, "c": True}


def test_another_wish_ends_the_move(tmp_path: Path) -> None:
    """Back to where it lies is a wish too; the copy is deleted."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create()
    turns.run()
    log, target = world.partition().log, other(world)
    world.moves.alter("t", 0, target)
    while not world.log_manager.copies:
        turns.turn()
    assert world.moves.alter("t", 0, target) == E.NONE  # goes on
    assert len(world.moves.under_way) == 1
    assert [name for name in names(target) if name.endswith(FUTURE)]
    assert world.moves.alter("t", 0, log.directory) == E.NONE
    turns.run()
    assert world.partition().log is log
    for _, work in world.log_manager.deletions(world.wall_ms):
        work()
    assert not [name for name in names(target) if name.startswith("t-0")]


@pytest.mark.parametrize("pieces", range(26))
def test_no_append_waits_for_a_move_that_was_called_off(tmp_path: Path, pieces: int) -> None:
    """At whatever moment."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create()
    turns.run()
    here = world.partition().log.directory
    world.moves.alter("t", 0, other(world))
    for _ in range(pieces):
        if turns.work:
            turns.turn()
    answer = world.produce(acks=1)
    world.moves.alter("t", 0, here)
    turns.run()
    assert produced(answer).error_code == E.NONE
    assert world.partition().log.directory == here


@pytest.mark.parametrize("pieces", range(26))
def test_a_topic_that_is_made_again_amid_a_move_moves_by_itself(tmp_path: Path, pieces: int) -> None:
    """At whatever moment the topic goes: what is left of the first move is in nobody's way, and not taken for the second."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create()
    world.produce(acks=1)
    turns.run()
    world.moves.alter("t", 0, other(world))
    for _ in range(pieces):
        if turns.work:
            turns.turn()
    world.delete()
    world.create()
    answer = world.produce(acks=1)
    target = other(world)
    assert world.moves.alter("t", 0, target) == E.NONE
    turns.run()
    assert produced(answer).error_code == E.NONE
    assert world.partition().log.directory == target
    assert everything(world, end=1) == [0]
    assert not world.moves.under_way
    assert not world.log_manager.copies
    assert not world.log_manager.offline


def test_two_copies_that_are_made_at_a_time_are_told_apart(tmp_path: Path) -> None:
    """The wish was changed while the first was being made, on a disk that is slower than the other."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=3)
    world.create()
    world.produce(acks=1)
    turns.run()
    first, second = [path for path in world.log_manager.directories if path != world.partition().log.directory]
    world.moves.alter("t", 0, first)
    while turns.work[0][0] != first:
        turns.turn()
    late = turns.work.popleft()
    world.moves.alter("t", 0, second)
    while not world.log_manager.copies:
        turns.turn()
    turns.work.appendleft(late)
    turns.run()
    assert world.partition().log.directory == second
    assert not world.log_manager.copies
    for _, work in world.log_manager.deletions(world.wall_ms):
        work()
    assert not [name for name in names(first) if name.startswith("t-0")]


@pytest.mark.parametrize("pieces", range(26))
def test_a_topic_that_is_deleted_takes_its_copy_along(tmp_path: Path, pieces: int) -> None:
    """At whatever moment."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create()
    world.produce(acks=1)
    turns.run()
    world.moves.alter("t", 0, other(world))
    for _ in range(pieces):
        if turns.work:
            turns.turn()
    world.delete()
    turns.run()
    assert not world.moves.under_way
    assert not world.log_manager.copies
    for _ in range(2):
        for _, work in world.log_manager.deletions(world.wall_ms + 600_000):
            work()
        world.wall_ms += 600_000
    for directory in world.log_manager.directories:
        assert not [name for name in names(directory) if name.startswith("t-0")]
    assert not world.log_manager.offline


@pytest.mark.parametrize("pieces", range(26))
@pytest.mark.parametrize("whose", ["the log's", "the copy's"])
def test_a_failing_directory_ends_the_move_alone(tmp_path: Path, pieces: int, whose: str) -> None:
    """At whatever moment: what lies in the other goes on, and no append waits for ever."""
    turns = Turns()
    world = World(tmp_path, worker=turns, directories=2)
    world.create(partitions=2)
    for index in (0, 1):
        world.produce(index=index, acks=1)
    turns.run()
    here, target = world.partition().log.directory, other(world)
    world.moves.alter("t", 0, target)
    for _ in range(pieces):
        if turns.work:
            turns.turn()
    turns.broken = here if whose == "the log's" else target
    answer = world.produce(acks=1)
    turns.run()
    if turns.broken not in world.log_manager.offline:  # nobody has used it since
        world.replicas.directory_failed(turns.broken, StorageError("use", turns.broken, OSError(5, "I/O error")))
        turns.run()
    assert not world.moves.under_way
    assert answer.is_done
    assert list(world.log_manager.offline) == [turns.broken]
    for index in (0, 1):
        partition = world.partition(index=index)
        assert partition.is_offline is (partition.log.directory == turns.broken)
        if not partition.is_offline:
            last = world.produce(index=index, acks=1)
            turns.run()
            assert produced(last).error_code == E.NONE


class NoTable(Disk):
    """Has no place for the table of leader epochs of a copy that is let go of."""

    def put_in_place(self, path: str, beside: str = TEMPORARY) -> None:
        if FUTURE in path and path.endswith(LEADER_EPOCHS) and beside != TEMPORARY:
            raise StorageError("rename", path, OSError(5, "I/O error"))
        super().put_in_place(path, beside)


def test_a_copy_whose_directory_fails_when_it_is_closed_does_not_take_the_place(tmp_path: Path) -> None:
    """It is closed last of all, and nothing of it is to be written then as a rule."""
    world = World(tmp_path, directories=2, disk=NoTable())
    world.create()
    world.produce(records=batch(5), acks=1)
    world.replicas.delete_records("t", 0, 2, world.wall_ms)
    here, target = world.partition().log.directory, other(world)
    world.moves.alter("t", 0, target)
    assert list(world.log_manager.offline) == [target]
    assert not world.moves.under_way
    assert world.partition().log.directory == here
    assert produced(world.produce(acks=1)).error_code == E.NONE


# ---- crashes ---------------------------------------------------------------------------------------------


class Crash(Exception):
    """The process is gone."""


class CrashingDisk(Disk):
    """Dies before the n-th change of a name from now on."""

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
def test_after_a_crash_there_is_one_log_with_everything(tmp_path: Path, steps: int) -> None:
    """future_logs rule 1: before, between and behind the three steps; what was begun is begun anew or over."""
    disk = CrashingDisk()
    world = World(tmp_path, directories=2, disk=disk)
    world.create()
    world.load(batches=3)
    directories = list(world.log_manager.directories)
    target = other(world)
    disk.left = steps
    with contextlib.suppress(Crash):
        world.moves.alter("t", 0, target)
    again = LogManager(Disk(), dict.fromkeys(directories, bytes(16)), LogConfig(), random_bytes=bytes)
    again.load()
    assert list(again.logs) == [("t", 0)]
    log = again.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    interrupted = again.take_interrupted()
    assert interrupted in ([], [(("t", 0), target)])
    assert not (interrupted and log.directory == target)
    for _, work in again.deletions(NOW_MS):
        work()
    left = [name for directory in directories for name in names(directory) if name.startswith("t-0")]
    assert left == ["t-0"]


def test_moves_that_were_interrupted_are_begun_anew_and_what_they_left_is_out_of_the_way(tmp_path: Path) -> None:
    """Rule 3; Apache Kafka does not start where two copies of one log lie."""
    world = World(tmp_path, directories=2)
    world.create()
    world.load(batches=3)
    target = other(world)
    lost = [Path(target) / f"t-0.{digit * 32}{FUTURE}" for digit in "01"]
    for path in lost:
        path.mkdir()
        world.log_manager._interrupted.append((("t", 0), str(path)))
    world.moves.resume()
    assert world.partition().log.directory == target
    assert [name.endswith(FUTURE) for name in names(target) if name.startswith("t-0.")] == [False, False]
    for _, work in world.log_manager.deletions(world.wall_ms):
        work()
    assert [name for name in names(target) if name.startswith("t-0")] == ["t-0"]


def test_a_copy_without_its_log_is_left_to_a_person(tmp_path: Path) -> None:
    """It is not complete, and the log may lie in a directory that is not given any more."""
    lost = tmp_path / f"t-0.{'0' * 32}{FUTURE}"
    lost.mkdir()
    manager = LogManager(Disk(), {str(tmp_path): bytes(16)}, LogConfig(), random_bytes=bytes)
    manager.load()
    assert manager.take_interrupted() == []
    assert manager.logs == {}
    for _, work in manager.deletions(NOW_MS):
        work()
    assert lost.exists()


def test_names_of_copies() -> None:
    assert copy_of(f"a.b-c-12.{'0a' * 16}{FUTURE}") == ("a.b-c", 12)
    for name in ("t-0", f"t-0.{'0' * 32}-delete", f"t-0.{'0' * 31}{FUTURE}", f"t.{'0' * 32}{FUTURE}"):
        assert copy_of(name) is None


def test_records_of_many_chunks_are_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch by batch where a chunk is smaller than one."""
    monkeypatch.setattr("replication.partition.log_dir_moves.CHUNK_BYTES", 1000)
    world.create()
    builder = BatchBuilder()
    for number in range(20):
        builder.append(NOW_MS, b"%d" % number, bytes(100))
    made = builder.build()
    for _ in range(8):
        world.produce(records=bytearray(made), acks=1)
    world.moves.alter("t", 0, other(world))
    log: Log = world.partition().log
    assert log.log_end_offset == 160
    assert log.size_bytes == 8 * len(made)
