"""The threads behind the Worker seam (broker/io/io_thread_pool.py)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from threading import Barrier, Thread, current_thread
from weakref import ref

import pytest

from broker.io.io_thread_pool import QUICK_IN_A_ROW, TRUSTED_S, ThreadWorker
from broker.io.reader_pool import READERS, UNREPORTED
from replication.io_executor import Done, Run
from storage.io.disk import StorageError
from tests.support.waiting import until


class Clock:
    """Stands in for time.monotonic in the workers."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("broker.io.io_thread_pool.time.monotonic", clock)
    return clock


class Held:
    """What a job closes over."""

    def work(self) -> None:
        """Nothing."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def worker(loop: asyncio.AbstractEventLoop) -> Iterator[ThreadWorker]:
    worker = ThreadWorker(loop)
    yield worker
    worker.stop()


Put = Callable[[ThreadWorker, Run, Done], None]
LANES: dict[str, Put] = {
    "read": lambda worker, run, done: worker.read("data", run, done),
    "write": lambda worker, run, done: worker.write("data", 2**30, run, done),
    "sync": lambda worker, run, done: worker.sync("data", lambda: run, done),
    "background": lambda worker, run, done: worker.background("data", run, done),
}


@pytest.mark.parametrize("lane", LANES)
def test_a_job_that_is_done_is_held_by_nobody(loop: asyncio.AbstractEventLoop, worker: ThreadWorker, lane: str) -> None:
    """Jobs close over open files; a thread that waits for its next job must not keep those of the last."""

    def put() -> ref[Held]:
        held = Held()
        LANES[lane](worker, held.work, lambda _: loop.stop())
        return ref(held)

    left = put()
    loop.run_forever()
    until(lambda: left() is None or None, "the thread lets go of the job")


def test_readers_are_never_far_ahead_of_the_loop(loop: asyncio.AbstractEventLoop, worker: ThreadWorker) -> None:
    """What they have opened stays open until the loop knows of it; all that is asked for is done all the same."""
    most = done = begun = 0
    total = 10 * UNREPORTED

    def run() -> None:
        nonlocal most, begun
        begun += 1
        most = max(most, begun - done)

    def report(_: Exception | None) -> None:
        nonlocal done
        done += 1
        if done == total:
            loop.stop()

    for _ in range(total):
        worker.read("data", run, report)
    until(lambda: begun >= UNREPORTED or None, "the readers do what they may")
    loop.run_forever()
    assert UNREPORTED <= most <= UNREPORTED + READERS


def test_one_reader_does_it_all_while_it_is_quick(
    loop: asyncio.AbstractEventLoop, worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """readers.py, rule 1: several would take the interpreter from each other after every call of the system."""
    monkeypatch.setattr("broker.io.reader_pool.PATIENCE_S", 1000.0)
    threads: set[object] = set()
    done: list[object] = []

    def report(error: StorageError | None) -> None:
        done.append(error)
        if len(done) == 5 * UNREPORTED:
            loop.stop()

    for _ in range(5 * UNREPORTED):
        worker.read("data", lambda: threads.add(current_thread()), report)
    loop.run_forever()
    assert done == [None] * 5 * UNREPORTED
    assert len(threads) == 1


def test_others_help_where_a_reader_is_stuck(loop: asyncio.AbstractEventLoop, worker: ThreadWorker) -> None:
    """readers.py, rule 1: as many read at a time as there may be, and all else that was asked for is done then."""
    together = Barrier(READERS)
    loop.set_exception_handler(lambda loop, _: loop.stop())
    done: list[object] = []

    def report(error: StorageError | None) -> None:
        done.append(error)
        if len(done) == READERS + UNREPORTED:
            loop.stop()

    for _ in range(READERS):
        worker.read("data", lambda: together.wait(timeout=60), report)
    for _ in range(UNREPORTED):
        worker.read("data", lambda: None, report)
    loop.run_forever()
    assert done == [None] * (READERS + UNREPORTED)


def test_what_readers_were_asked_for_is_done_before_the_end(
    loop: asyncio.AbstractEventLoop, worker: ThreadWorker
) -> None:
    """Their reports come on the loop as ever."""
    done: list[object] = []
    for _ in range(3 * UNREPORTED):
        worker.read("data", lambda: None, done.append)
    worker.stop()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert done == [None] * 3 * UNREPORTED


class Directory:
    """A log directory that takes its time, and who writes to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: ThreadWorker, clock: Clock) -> None:
        self._loop = loop
        self._worker = worker
        self._clock = clock
        self._writer: Thread | None = None

    def write(self, size: int, takes_s: float) -> bool:
        """One write; whether the loop did it itself."""

        def run() -> None:
            self._writer = current_thread()
            self._clock.now_s += takes_s

        self._worker.write("data", size, run, lambda _: self._loop.stop())
        self._loop.run_forever()
        return self._writer is current_thread()


@pytest.fixture
def directory(loop: asyncio.AbstractEventLoop, worker: ThreadWorker, clock: Clock) -> Directory:
    return Directory(loop, worker, clock)


def test_a_slow_write_sends_the_directory_to_its_thread_until_it_is_quick_again(directory: Directory) -> None:
    """Design D12a: the first slow write is the only one that the loop waits for."""
    assert not directory.write(100, 0)  # nobody knows it yet
    assert directory.write(100, 0.2)
    assert not any(directory.write(100, 0.2) for _ in range(20))
    assert not any(directory.write(100, 0) for _ in range(QUICK_IN_A_ROW))
    assert directory.write(100, 0)


def test_work_without_bytes_does_not_make_a_directory_quick(directory: Directory) -> None:
    """Much of it touches no disk, so it proves nothing."""
    directory.write(100, 0)
    directory.write(100, 0.2)
    for _ in range(2 * QUICK_IN_A_ROW):
        directory.write(0, 0)
    assert not directory.write(100, 0.2)


def test_after_a_rest_the_thread_finds_out_whether_a_directory_is_still_quick(
    directory: Directory, clock: Clock
) -> None:
    """Rule 1: a directory that became slow while nobody wrote is not felt."""
    directory.write(100, 0)
    assert directory.write(100, 0)
    clock.now_s += TRUSTED_S + 0.1
    assert not directory.write(100, 0.2)


# ---- a full disk ---------------------------------------------------------------------------------------------

FULL = StorageError("write", "data/t-0/0.log", OSError(errno.ENOSPC, "No space left on device"))


class Scarce:
    """A write that finds no room the first times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def work(self) -> None:
        """Try."""
        self.times -= 1
        if self.times >= 0:
            raise FULL


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker_thread", "reader_pool"):
        monkeypatch.setattr(f"broker.io.{module}.ROOM_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [0, 2**30])
def test_a_write_waits_for_room_and_what_comes_later_waits_behind_it(
    loop: asyncio.AbstractEventLoop, worker: ThreadWorker, size: int
) -> None:
    """lanes.py, rule 3; whoever wants to know is told once when the room is gone, and once when it is back."""
    told: list[object] = []
    worker.on_room = lambda directory, has_room: told.append((directory, has_room))
    worker.write("data", 2**30, lambda: None, told.append)
    worker.write("data", size, Scarce(5).work, told.append)

    def done(error: StorageError | None) -> None:
        told.append(error)
        loop.stop()

    worker.write("data", 0, lambda: told.append("the next"), done)
    loop.run_forever()
    assert [what for what in told if what != "the next"] == [None, ("data", False), ("data", True), None, None]


@pytest.mark.usefixtures("impatient")
def test_a_sync_that_finds_no_room_for_its_small_files_is_done_again(
    loop: asyncio.AbstractEventLoop, worker: ThreadWorker
) -> None:
    """What is synced may be synced again; a sync that has failed itself is another matter."""
    told: list[StorageError | None] = []
    worker.sync("data", lambda: Scarce(3).work, lambda error: (told.append(error), loop.stop()))
    loop.run_forever()
    assert told == [None]
    for action in ("sync", "sync the directory", "sync the file system of"):
        assert not StorageError(action, "data/t-0", OSError(errno.ENOSPC, "")).is_full


@pytest.mark.usefixtures("impatient")
def test_readers_that_find_no_room_are_not_waited_for(loop: asyncio.AbstractEventLoop, worker: ThreadWorker) -> None:
    """The opening of a log may need some; others are read meanwhile, however many there are without."""
    told: list[object] = []
    worker.on_room = lambda directory, has_room: told.append((directory, has_room))
    scarce = [Scarce(2**30) for _ in range(3 * UNREPORTED)]
    for each in scarce:
        worker.read("data", each.work, told.append)

    def read(error: StorageError | None) -> None:
        told.append("another")
        assert error is None
        for each in scarce:
            each.times = 0
        worker.read("data", lambda: None, end)

    def end(_: StorageError | None) -> None:
        if told.count(None) == len(scarce):
            loop.stop()
        else:
            loop.call_later(0.001, end, None)

    worker.read("data", lambda: None, read)
    loop.run_forever()
    told.remove("another")
    assert told[0] == ("data", False)
    assert told[-2:] == [("data", True), None]
    assert told.count(("data", False)) == told.count(("data", True))


def test_what_readers_have_no_room_for_is_a_failure_at_the_end(
    loop: asyncio.AbstractEventLoop, worker: ThreadWorker
) -> None:
    """Also of what is put aside at that moment."""
    told: list[StorageError | None] = []
    worker.on_room = lambda _directory, has_room: loop.stop() if not has_room else None
    worker.read("data", Scarce(2**30).work, told.append)
    loop.run_forever()
    worker.stop()
    loop.call_soon(loop.stop)  # behind what the threads reported
    loop.run_forever()
    assert told == [FULL]


def test_deletions_wait_for_nothing(loop: asyncio.AbstractEventLoop, worker: ThreadWorker) -> None:
    """They make room, so they must not wait behind a checkpoint that needs some."""
    told: list[StorageError | None] = []
    worker.background("data", Scarce(1).work, told.append)
    worker.background("data", lambda: None, lambda _: loop.stop())
    loop.run_forever()
    assert told == [FULL]


def test_at_the_end_a_full_disk_is_a_failure(loop: asyncio.AbstractEventLoop, worker: ThreadWorker) -> None:
    """Else a broker could not be stopped."""
    told: list[StorageError | None] = []
    worker.on_room = lambda _directory, _has_room: worker.wait_no_longer()
    worker.write("data", 2**30, Scarce(2**30).work, lambda error: (told.append(error), loop.stop()))
    loop.run_forever()
    assert told == [FULL]
