"""Which log is compacted next, and what becomes of the segments that a cleaner has made."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.records import BatchBuilder, headers
from replication.partition.compactor import Compactor, Done, Replace
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import Cleaned, Failed, Job, Replacement, Resources
from storage.io.disk import Disk
from storage.segments.directory_recovery import CLEANED, SWAP
from tests.support.compaction import InlineCleaner
from tests.support.replica_harness import HeldWorker, World, fetched, produced
from tests.support.segments import let_go

COMPACT = {"cleanup_policy": "compact", "internal_segment_bytes": 600, "min_cleanable_dirty_ratio": 0.3}


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="barnabas.compaction")


class HeldCleaner:
    """Does a job when the test says so, step by step."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Job, Replace, Done]] = []
        self.rests = 0

    def start(self, job: Job, replace: Replace, done: Done) -> None:
        self.jobs.append((job, replace, done))

    def rest(self) -> None:
        self.rests += 1

    def work(self, before_each: Callable[[], object] = lambda: None) -> list[bool]:
        """Do the job; what was answered to each new segment."""
        job, replace, done = self.jobs.pop(0)
        answers: list[bool] = []
        for step in clean(Disk(), job):
            if isinstance(step, Replacement):
                before_each()
                replace(step, answers.append)
                if not answers[-1]:
                    done(None)
                    return answers
            elif isinstance(step, Cleaned):
                done(step)
        return answers


@pytest.fixture
def world(tmp_path: Path) -> World:
    """One broker."""
    return World(tmp_path)


def compactor(world: World, *cleaners: InlineCleaner | HeldCleaner) -> Compactor:
    """A compactor with these cleaners, or one that works in line."""
    return Compactor(world.replicas, cleaners or [InlineCleaner(Disk())], Resources(), lambda: world.wall_ms)


def write(world: World, name: str = "t", count: int = 20, keys: int = 3, index: int = 0) -> None:
    """Batches of one record."""
    for number in range(count):
        batch = BatchBuilder()
        batch.append(world.wall_ms, b"k%d" % (number % keys), b"v" * 100)
        assert produced(world.produce(name, index, records=batch.build(), acks=1)).error_code == 0
    world.settle()


def offsets(world: World, name: str = "t") -> list[int]:
    """Base offsets of all batches with records."""
    data = world.partition(name).log
    found, at = [], data.log_start_offset
    while at < data.log_end_offset:
        for _, header in headers(buffer := data.read_records(at, 1 << 20)):
            if header.record_count:
                found.append(header.base_offset)
            at = header.next_offset
        assert buffer
    return found


def size(world: World, name: str = "t") -> int:
    """Bytes of a log."""
    return world.partition(name).log.size_bytes


def test_what_is_due_is_compacted_and_then_nothing_more(world: World) -> None:
    """Rule 1; a second look finds nothing."""
    world.create(**COMPACT)
    write(world)
    before = size(world)
    held = compactor(world)
    held.look()
    log = world.partition().log
    assert size(world) < before / 2
    assert log.first_dirty_offset == log.open().segments()[-1].base_offset
    after = size(world)
    held.look()
    assert size(world) == after
    assert fetched(world.fetch(offset=0)).error_code == 0


def test_what_is_not_durable_waits_for_a_sync_that_is_asked_for(tmp_path: Path) -> None:
    """A loss of power must not take a record after its predecessor was cleaned away for it."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create(**COMPACT)
    for number in range(20):
        batch = BatchBuilder()
        batch.append(world.wall_ms, b"k%d" % (number % 3), b"v" * 100)
        world.produce(records=batch.build(), acks=1)
        worker.let_write()
    cleaner = HeldCleaner()
    held = compactor(world, cleaner)
    held.look()
    assert (cleaner.jobs, len(worker.syncs)) == ([], 1)
    worker.let_sync()
    held.look()
    assert (len(cleaner.jobs), worker.syncs) == (1, [])


def test_only_compacted_topics(world: World) -> None:
    """A topic without the policy is left as it is."""
    world.create(**{**COMPACT, "cleanup_policy": "delete"})
    write(world)
    before = offsets(world)
    compactor(world).look()
    assert offsets(world) == before


def test_the_dirtiest_comes_first(world: World) -> None:
    """Rule 1: by the share that is dirty, not by size."""
    cleaner = HeldCleaner()
    for name in ("half", "full"):
        world.create(name, **COMPACT)
        write(world, name)
    log = world.partition("half").log
    log.first_dirty_offset = 8
    held = compactor(world, cleaner)
    held.look()
    assert [job.name for job, _, _ in cleaner.jobs] == ["full-0"]
    held.look()
    assert len(cleaner.jobs) == 1, "the only cleaner is at work"
    cleaner.work()
    assert [job.name for job, _, _ in cleaner.jobs] == ["half-0"], "and then the next"
    assert cleaner.jobs[0][0].first_dirty_offset == 8
    cleaner.work()
    assert (cleaner.jobs, cleaner.rests > 0) == ([], True)


def test_two_cleaners_do_two_logs(world: World) -> None:
    """log.cleaner.threads; no two do the same."""
    cleaners = HeldCleaner(), HeldCleaner()
    for name in ("a", "b", "c"):
        world.create(name, **COMPACT)
        write(world, name)
    held = compactor(world, *cleaners)
    held.look()
    assert {cleaner.jobs[0][0].name for cleaner in cleaners} < {"a-0", "b-0", "c-0"}
    assert cleaners[0].jobs[0][0].name != cleaners[1].jobs[0][0].name


def test_a_log_that_nobody_uses_is_opened_once_and_closed_again(world: World) -> None:
    """Rule 2: thousands of partitions stay closed."""
    world.create(**COMPACT)
    write(world)
    held = compactor(world)
    held.look()
    log = world.partition().log
    log.close()
    world.partition().log.first_dirty_offset = log.first_dirty_offset
    held.look()
    assert (log.is_open, log.is_spotless) == (False, True)
    held.look()
    assert not log.is_open
    write(world, count=10)
    assert (log.is_open, log.is_spotless) == (True, False)


def test_what_the_checkpoints_tell_is_not_looked_at(world: World) -> None:
    """Rule 2: an empty log, one that is clean to its end, one that was not closed cleanly."""
    world.create(partitions=3, **COMPACT)
    for index in range(3):
        write(world, count=20 * index, index=index)
    compactor(world).look()
    logs = [world.partition("t", index).log for index in range(3)]
    for log in logs:
        log.open()
        log.close()
    logs[1].first_dirty_offset = 20
    logs[2]._is_clean = False  # as after a crash
    compactor(world).look()
    assert [log.is_open for log in logs] == [False] * 3
    logs[2]._is_clean = True
    compactor(world).look()
    assert [log.is_spotless for log in logs] == [False, False, True], "opened and closed again"


def test_reads_go_on_while_the_names_are_changed(tmp_path: Path) -> None:
    """Rule 3: the new segment can be read from where its files are, before, amid and after."""
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    world.create(**COMPACT)
    for _ in range(20):
        batch = BatchBuilder()
        batch.append(world.wall_ms, b"k", b"v" * 100)
        answer = world.produce(records=batch.build(), acks=1)
        worker.let_write()
        assert answer.is_done
    log = world.partition().log
    held = compactor(world)
    held.look()
    worker.let_sync()
    changes: list[Callable[[], None]] = []
    log.later = changes.append
    held.look()
    assert [name for name in os.listdir(log.path) if name.endswith(CLEANED)]
    expected = offsets(world)
    let_go(log.open())
    assert offsets(world) == expected
    while changes:
        changes.pop(0)()
    assert not [name for name in os.listdir(log.path) if name.endswith((CLEANED, SWAP))]
    let_go(log.open())
    assert offsets(world) == expected


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda world: world.delete(),
        lambda world: world.partition().log.truncate(5),
        lambda world: world.partition().log.trim(15, 0),
        lambda world: world.replicas.directory_failed(world.partition().log.directory, _eio()),
        lambda world: setattr(world.partition().log, "config", world.replicas.config_of("other")),
    ],
    ids=["deleted", "cut", "trimmed", "offline", "not compacted any more"],
)
def test_what_has_become_of_the_log_meanwhile_ends_the_cleaning(
    world: World, meanwhile: Callable[[World], object]
) -> None:
    """Rule 3: nothing is put in place, nobody fails, the cleaner is free again."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, cleaner)
    held.look()
    assert cleaner.work(lambda: meanwhile(world)) == [False]
    held.look()
    world.create("u", **COMPACT)
    if world.log_manager.directories:
        write(world, "u")
        cleaner.jobs.clear()
        held.look()


def _eio() -> object:
    from storage.io.disk import StorageError

    return StorageError("write", "x", OSError(errno.EIO, "I/O error"))


def test_a_log_that_cannot_be_compacted_is_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Rule 4: one line, and the next log."""
    world.create("broken", **COMPACT)
    world.create("good", **COMPACT)
    write(world, "broken")
    write(world, "good")
    log = world.partition("broken").log
    path = Path(log.path) / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    before = size(world, "good")
    held = compactor(world)
    held.look()
    held.look()
    assert log.is_uncleanable
    assert [line.message for line in caplog.records].count(
        f"broken-0 cannot be compacted and is left as it is: {path} is damaged at position 0"
    ) == 1  # fmt: skip
    assert size(world, "good") < before
    assert path.read_bytes() == data
    assert world.log_manager.directories, "the disk is all right"


def test_a_failing_disk_takes_its_directory_offline(world: World) -> None:
    """Rule 4: unless the files are gone because the log has changed."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    directory = world.partition().log.directory
    compactor(world, cleaner).look()
    cleaner.jobs.pop()[2](Failed(is_damage=False, text="Cannot read", path=f"{directory}/t-0/x", errno=errno.EIO))
    assert not world.log_manager.directories


FULL = Failed(is_damage=False, text="Cannot write x", path="x", errno=errno.ENOSPC)
KILLED = Failed(is_damage=False, text="the helper process was ended by SIGKILL")


@pytest.mark.parametrize("failure", [FULL, KILLED])
def test_a_full_disk_or_the_death_of_a_helper_only_delays(
    failure: Failed, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 5: nothing is damaged; it is tried again after a rest, which is longer each time and ends with a success."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, cleaner)
    held.look()
    rests = [15, 30, 60, 120, 240, 480, 600, 600]
    for seconds in rests:
        cleaner.jobs.pop()[2](failure)
        world.pass_time(seconds * 1000 - 1)
        held.look()
        assert cleaner.jobs == []
        world.pass_time(1)
        held.look()
        assert len(cleaner.jobs) == 1
    assert world.log_manager.directories
    assert [line.message for line in caplog.records] == [
        f"t-0 is not compacted for the next {seconds} s: {failure.text}" for seconds in rests
    ]
    assert all(cleaner.work())
    write(world)
    held.look()
    cleaner.jobs.pop()[2](failure)
    assert "for the next 15 s" in caplog.records[-1].message


def test_a_rest_ends_when_the_clock_is_put_back(world: World) -> None:
    """Else it might last for hours."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, cleaner)
    held.look()
    cleaner.jobs.pop()[2](KILLED)
    world.wall_ms -= 3_600_000
    held.look()
    assert len(cleaner.jobs) == 1


def test_no_two_cleaners_work_in_one_directory(world: World) -> None:
    """Also when the topic was deleted and made again while the first was at work."""
    cleaners = HeldCleaner(), HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, *cleaners)
    held.look()
    world.delete()
    world.create(**COMPACT)
    write(world)
    held.look()
    busy = [cleaner for cleaner in cleaners if cleaner.jobs]
    assert len(busy) == 1
    assert busy[0].work() == [False]
    held.look()
    assert sum(len(cleaner.jobs) for cleaner in cleaners) == 1


def test_a_file_that_is_missing_because_it_was_trimmed_is_no_failure(world: World) -> None:
    """Rule 4."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    log = world.partition().log
    compactor(world, cleaner).look()
    log.trim(15, 0)
    cleaner.jobs.pop()[2](Failed(is_damage=False, text="Cannot open", path=f"{log.path}/x", errno=errno.ENOENT))
    assert world.log_manager.directories
    assert (log.is_being_cleaned, cleaner.jobs) == (False, []), "not again at once, but the next time"


def test_retention_waits_for_the_cleaning(world: World) -> None:
    """Rule 5; the policy may be both."""
    cleaner = HeldCleaner()
    world.create(**{**COMPACT, "cleanup_policy": "compact,delete", "retention_ms": 1000})
    write(world)
    compactor(world, cleaner).look()
    world.pass_time(100_000)
    log = world.partition().log
    for _ in world.log_manager.retain(world.wall_ms):
        pass
    assert log.log_start_offset == 0
    assert all(cleaner.work())
    for _ in world.log_manager.retain(world.wall_ms):
        pass
    assert log.log_start_offset == log.log_end_offset == 20


def test_others_go_on_where_a_cleaner_was_replaced(world: World) -> None:
    """With other resources; who was replaced gets nothing more to do."""
    old, new = HeldCleaner(), HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, old)
    held.look()
    job, _, done = old.jobs[0]
    held.use([new], Resources(buffer_bytes=4096))
    held.look()
    assert not new.jobs, "two must not clean one log"
    done(None)
    ((again, _, _),) = new.jobs
    assert (again.path, again.resources) == (job.path, Resources(buffer_bytes=4096))
    assert len(old.jobs) == 1


def test_a_stopped_compactor_puts_nothing_in_place(world: World) -> None:
    """The broker is closing its logs."""
    cleaner = HeldCleaner()
    world.create(**COMPACT)
    write(world)
    held = compactor(world, cleaner)
    held.look()
    held.stop()
    assert cleaner.work() == [False]
    held.look()
    assert cleaner.jobs == []


def test_the_first_dirty_offset_is_written_down_and_known_after_a_restart(world: World) -> None:
    """cleaner-offset-checkpoint, as Kafka's; a log that was cut goes back with it."""
    world.create(**COMPACT)
    write(world)
    compactor(world).look()
    log = world.partition().log
    for _, work in world.log_manager.checkpoint():
        work()
    text = (Path(log.directory) / "cleaner-offset-checkpoint").read_text()
    assert text == f"0\n1\nt 0 {log.first_dirty_offset}\n"
    log.truncate(7)
    assert log.first_dirty_offset == log.log_end_offset <= 7
