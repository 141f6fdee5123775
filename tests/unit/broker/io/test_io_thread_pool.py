"""The I/O threads (broker/io/io_thread_pool.py)."""

from __future__ import annotations

import errno
import gc
from asyncio import AbstractEventLoop, new_event_loop
from collections.abc import Callable, Iterator
from functools import partial
from threading import Barrier, Event, Thread, current_thread
from weakref import ref

import pytest

from broker.io.io_thread_pool import MAX_IDLE_S, QUICK_IN_A_ROW, SLOW_WRITERS, IoThreadPool
from broker.io.reader_pool import MAX_READERS, MAX_UNREPORTED
from replication.io_executor import IoResult, Run
from storage.io.disk import StorageError
from tests.support.waiting import until


class Clock:
    """Replaces time.monotonic in the threads."""

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
    """An object that a job references."""

    def work(self) -> None: ...


@pytest.fixture
def loop() -> Iterator[AbstractEventLoop]:
    loop = new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def worker(loop: AbstractEventLoop) -> Iterator[IoThreadPool]:
    worker = IoThreadPool(loop)
    yield worker
    worker.stop()


def assert_true(value: object) -> None:
    assert value


class Reports(list[object]):
    """The results of jobs; the loop stops at the last expected one."""

    def __init__(self, loop: AbstractEventLoop, expected: int = 1) -> None:
        self._loop = loop
        self._expected = expected

    def report(self, io: IoResult) -> None:
        self.append(io.value)
        if len(self) == self._expected:
            self._loop.stop()


Put = Callable[[IoThreadPool, Run], IoResult]
OPERATIONS: dict[str, Put] = {
    "read": lambda worker, run: worker.read("data", run),
    "write": lambda worker, run: worker.write("data", 2**30, run),
    "sync": lambda worker, run: worker.sync("data", lambda: run),
    "background": lambda worker, run: worker.background("data", run),
}


def test_jobs_that_results_submit_are_finished_and_reported_before_the_end(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    """A replica of the metadata log appends after its election state is written, and then flushes."""
    done: list[str] = []
    steps = [*OPERATIONS] * 2

    def next_step(_: object = None) -> None:
        if steps:
            name = steps.pop()
            OPERATIONS[name](worker, partial(done.append, name)).then(next_step)

    next_step()
    assert worker.finish()
    assert done == [*reversed(OPERATIONS)] * 2


def test_jobs_that_submit_jobs_without_end_do_not_keep_the_threads(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    def again(_: object = None) -> None:
        worker.read("data", lambda: None).then(again)

    again()
    assert not worker.finish()


@pytest.mark.parametrize("thread", OPERATIONS)
def test_a_finished_job_is_released(loop: AbstractEventLoop, worker: IoThreadPool, thread: str) -> None:
    def put() -> ref[Held]:
        held = Held()
        OPERATIONS[thread](worker, held.work).then(lambda _: loop.stop())
        return ref(held)

    left = put()
    loop.run_forever()
    until(lambda: left() is None or None, "the thread lets go of the job")


@pytest.mark.pure_python("replaces a constant of a compiled module")
def test_the_result_of_a_slow_write_does_not_wait_for_later_writes(
    loop: AbstractEventLoop, worker: IoThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.io.worker_thread.REPORT_S", 0.0)
    are_submitted, is_reported = Event(), Event()
    worker.write("data", 2**30, lambda: assert_true(are_submitted.wait(60)))
    worker.write("data", 2**30, lambda: None).then(lambda _: is_reported.set())
    last = worker.write("data", 2**30, lambda: assert_true(is_reported.wait(60)))
    last.then(lambda _: loop.stop())
    are_submitted.set()
    loop.run_forever()
    assert last.value is None


def test_the_metadata_log_does_not_wait_for_writes_and_flushes_of_partitions(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    is_written = Event()
    worker.write("data", 2**30, lambda: assert_true(is_written.wait(60)))
    partitions = worker.sync("data", lambda: lambda: assert_true(is_written.wait(60)))
    partitions.then(lambda _: loop.stop())

    def sync(_: IoResult) -> None:
        worker.of_metadata_log.sync("data", lambda: is_written.set)

    worker.of_metadata_log.write("data", 2**30, lambda: None).then(sync)
    loop.run_forever()
    assert partitions.value is None


def test_readers_run_a_bounded_number_of_jobs_ahead_of_the_loop(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    highest = started = 0
    total = 10 * MAX_UNREPORTED
    done = Reports(loop, total)
    are_submitted = Event()  # a thread that runs out of jobs earlier waits for the loop

    def run() -> None:
        nonlocal highest, started
        are_submitted.wait()
        started += 1
        highest = max(highest, started - len(done))

    for _ in range(total):
        worker.read("data", run).then(done.report)
    are_submitted.set()
    until(lambda: started >= MAX_UNREPORTED or None, "the readers do what they may")
    loop.run_forever()
    assert MAX_UNREPORTED <= highest <= MAX_UNREPORTED + MAX_READERS


@pytest.mark.pure_python("replaces a constant of a compiled module")
def test_one_reader_runs_all_jobs_while_it_is_fast(
    loop: AbstractEventLoop, worker: IoThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.io.reader_pool.STUCK_AFTER_S", 1000.0)
    threads: set[object] = set()
    done = Reports(loop, 5 * MAX_UNREPORTED)
    for _ in range(5 * MAX_UNREPORTED):
        worker.read("data", lambda: threads.add(current_thread())).then(done.report)
    loop.run_forever()
    assert done == [None] * 5 * MAX_UNREPORTED
    assert len(threads) == 1


def test_a_job_that_follows_from_a_result_starts_after_all_results_are_reported(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    are_submitted, follower_runs = Event(), Event()
    started_early: list[bool] = []
    done = Reports(loop, 3)

    def follow(io: IoResult) -> None:
        worker.read("data", follower_runs.set).then(done.report)
        started_early.append(follower_runs.wait(0.05))
        done.report(io)

    worker.read("data", lambda: assert_true(are_submitted.wait(60))).then(follow)
    worker.read("data", lambda: None).then(done.report)
    are_submitted.set()
    loop.run_forever()
    assert started_early == [False]


def test_more_readers_start_while_one_is_stuck(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    together = Barrier(MAX_READERS)

    def wait_for_all() -> None:
        together.wait(timeout=60)

    loop.set_exception_handler(lambda loop, _: loop.stop())
    done = Reports(loop, MAX_READERS + MAX_UNREPORTED)
    for _ in range(MAX_READERS):
        worker.read("data", wait_for_all).then(done.report)
    for _ in range(MAX_UNREPORTED):
        worker.read("data", lambda: None).then(done.report)
    loop.run_forever()
    assert done == [None] * (MAX_READERS + MAX_UNREPORTED)


def test_a_result_does_not_wait_for_a_stuck_job_of_the_same_thread(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    are_submitted, goes_on = Event(), Event()
    done = Reports(loop, 1)
    worker.read("data", lambda: assert_true(are_submitted.wait(60))).then(done.report)
    worker.read("data", lambda: assert_true(goes_on.wait(60))).then(done.report)
    are_submitted.set()
    loop.call_later(30, loop.stop)
    loop.run_forever()
    assert done == [None]
    goes_on.set()


@pytest.mark.pure_python("replaces a constant of a compiled module")
def test_one_reader_runs_all_jobs_after_several_were_needed(
    loop: AbstractEventLoop, worker: IoThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Barrier(MAX_READERS)
    done = Reports(loop, MAX_READERS)
    for _ in range(MAX_READERS):
        worker.read("data", lambda: assert_true(together.wait(timeout=60) >= 0)).then(done.report)
    loop.run_forever()
    monkeypatch.setattr("broker.io.reader_pool.STUCK_AFTER_S", 1000.0)
    threads: set[object] = set()
    for _ in range(50):
        done = Reports(loop, 1)
        worker.read("data", lambda: threads.add(current_thread())).then(done.report)
        loop.run_forever()
    assert len(threads) == 1


@pytest.mark.pure_python("replaces a constant of a compiled module")
def test_a_stuck_reader_does_not_slow_the_jobs_of_another_one(
    loop: AbstractEventLoop, worker: IoThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = Event()
    worker.read("data", lambda: assert_true(goes_on.wait(60)))
    done = Reports(loop, 1)
    worker.read("data", lambda: None).then(done.report)
    loop.run_forever()  # another reader takes its place
    monkeypatch.setattr("broker.io.reader_pool.STUCK_AFTER_S", 1000.0)
    timeout = loop.call_later(30, loop.stop)
    for _ in range(50):
        done = Reports(loop, 1)
        worker.read("data", lambda: None).then(done.report)
        loop.run_forever()
        assert done == [None]
    timeout.cancel()
    goes_on.set()


def test_the_loop_leaves_it_to_a_thread_to_close_a_deleted_file(
    loop: AbstractEventLoop, worker: IoThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing: list[tuple[int, Thread]] = []
    monkeypatch.setattr("os.close", lambda descriptor: closing.append((descriptor, current_thread())))
    other = Thread(target=worker.close_deleted, args=(-7,))
    worker.close_deleted(-5)
    other.start()
    other.join()
    assert closing == [(-5, current_thread()), (-7, other)], "the loop does not run, or another thread may wait"
    loop.call_soon(worker.close_deleted, -3)
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()
    assert worker.finish()
    descriptor, thread = closing[2]
    assert descriptor == -3
    assert thread not in (current_thread(), other)


def test_stop_runs_the_queued_reads(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    done: list[object] = []
    for _ in range(3 * MAX_UNREPORTED):
        worker.read("data", lambda: None).then(lambda io: done.append(io.value))
    worker.stop()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert done == [None] * 3 * MAX_UNREPORTED


@pytest.mark.parametrize("thread", OPERATIONS)
def test_a_job_after_the_stop_runs_in_the_caller(loop: AbstractEventLoop, worker: IoThreadPool, thread: str) -> None:
    """A thread that starts then would report to a closed loop."""
    threads: list[object] = []
    done = Reports(loop, 2)
    OPERATIONS[thread](worker, lambda: threads.append(current_thread())).then(done.report)
    worker.stop()
    OPERATIONS[thread](worker, lambda: threads.append(current_thread())).then(done.report)
    loop.run_forever()
    assert done == [None, None]
    assert threads[1] is current_thread()


class Directory:
    """A log directory with a write latency."""

    def __init__(self, loop: AbstractEventLoop, worker: IoThreadPool, clock: Clock) -> None:
        self._loop = loop
        self._worker = worker
        self._clock = clock
        self._writer: Thread | None = None

    def write(self, size: int, takes_s: float, calls: int = 1) -> bool:
        """Writes with some system calls; returns whether the write was inline."""

        def run() -> None:
            self._writer = current_thread()
            self._clock.now_s += takes_s

        self._worker.write("data", size, run, calls).then(lambda _: self._loop.stop())
        self._loop.run_forever()
        return self._writer is current_thread()


@pytest.fixture
def directory(loop: AbstractEventLoop, worker: IoThreadPool, clock: Clock) -> Directory:
    return Directory(loop, worker, clock)


def test_a_slow_write_moves_writes_to_the_thread_until_they_are_fast_again(directory: Directory) -> None:
    assert not directory.write(100, 0)  # its speed is unknown
    assert directory.write(100, 0.2)
    assert not any(directory.write(100, 0.2) for _ in range(20))
    assert not any(directory.write(100, 0) for _ in range(QUICK_IN_A_ROW))
    assert directory.write(100, 0)


def test_the_time_of_each_call_shows_whether_the_thread_is_fast_again(directory: Directory) -> None:
    """A thread waits for the interpreter lock after each call, so that all together are slow while the loop is busy."""
    directory.write(100, 0)
    assert directory.write(100, 0.2, calls=64)
    assert not any(directory.write(100, 0.06, calls=64) for _ in range(QUICK_IN_A_ROW))
    assert directory.write(100, 0.2, calls=64)
    assert not any(directory.write(100, 0.2, calls=64) for _ in range(2 * QUICK_IN_A_ROW))


def test_work_without_bytes_does_not_prove_a_fast_directory(directory: Directory) -> None:
    directory.write(100, 0)
    directory.write(100, 0.2)
    for _ in range(2 * QUICK_IN_A_ROW):
        directory.write(0, 0)
    assert not directory.write(100, 0.2)


def test_appends_to_a_slow_directory_run_at_the_same_time_up_to_another_job(
    loop: AbstractEventLoop, worker: IoThreadPool, directory: Directory
) -> None:
    """Their results are given in order."""
    directory.write(100, 0)
    directory.write(100, 0.2)
    are_submitted, together = Event(), Barrier(SLOW_WRITERS)
    ended: list[int] = []
    reported: list[int] = []

    def write(number: int, size: int, run: Run) -> None:
        def run_and_note() -> None:
            run()
            ended.append(number)

        worker.write("data", size, run_and_note).then(lambda _: reported.append(number))

    def is_alone() -> None:
        assert len(ended) == SLOW_WRITERS + 1

    write(0, 0, lambda: assert_true(are_submitted.wait(60)))
    for number in range(1, SLOW_WRITERS + 1):
        write(number, 100, lambda: assert_true(together.wait(60) < SLOW_WRITERS))
    write(SLOW_WRITERS + 1, 0, is_alone)
    for number in range(SLOW_WRITERS + 2, SLOW_WRITERS + 4):
        write(number, 100, lambda: None)
    worker.write("data", 0, lambda: None).then(lambda _: loop.stop())
    are_submitted.set()
    loop.run_forever()
    assert reported == list(range(SLOW_WRITERS + 4))
    assert ended.index(SLOW_WRITERS + 1) == SLOW_WRITERS + 1


def test_appends_run_one_by_one_after_a_fast_one(
    loop: AbstractEventLoop, worker: IoThreadPool, directory: Directory
) -> None:
    """Threads at the same time wait for each other's interpreter lock after each call."""
    directory.write(100, 0)
    directory.write(100, 0.2)
    directory.write(100, 0)
    are_submitted = Event()
    writers: list[Thread] = []
    worker.write("data", 0, lambda: assert_true(are_submitted.wait(60)))
    for _ in range(SLOW_WRITERS):
        worker.write("data", 100, lambda: writers.append(current_thread()))
    worker.write("data", 0, lambda: None).then(lambda _: loop.stop())
    are_submitted.set()
    loop.run_forever()
    assert len(writers) == SLOW_WRITERS
    assert len(set(writers)) == 1


def test_the_thread_writes_first_after_an_idle_time(directory: Directory, clock: Clock) -> None:
    directory.write(100, 0)
    assert directory.write(100, 0)
    clock.now_s += MAX_IDLE_S + 0.1
    assert not directory.write(100, 0.2)


# ---- a full disk ---------------------------------------------------------------------------------------------

FULL = StorageError("write", "data/t-0/0.log", OSError(errno.ENOSPC, "No space left on device"))


class FullDiskWrite:
    """A write that finds a full disk the first times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def work(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise FULL


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("worker_thread", "reader_pool"):
        monkeypatch.setattr(f"broker.io.{module}.SPACE_CHECK_INTERVAL_S", 0.001)


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize("size", [0, 2**30])
def test_a_write_waits_for_space_and_later_writes_wait_behind_it(
    loop: AbstractEventLoop, worker: IoThreadPool, size: int
) -> None:
    results = Reports(loop, 5)
    worker.on_space_change = lambda directory, has_space: results.append((directory, has_space))
    worker.write("data", 2**30, lambda: None).then(results.report)
    worker.write("data", size, FullDiskWrite(5).work).then(results.report)
    worker.write("data", 0, lambda: None).then(results.report)
    loop.run_forever()
    assert results == [None, ("data", False), ("data", True), None, None]


@pytest.mark.usefixtures("fast_retries")
def test_a_write_that_waits_for_space_holds_nothing_of_earlier_attempts(
    loop: AbstractEventLoop, worker: IoThreadPool
) -> None:
    """Such as a file that is deleted meanwhile."""
    held: list[ref[Held]] = []
    alive: list[int] = []

    def write() -> None:
        alive.append(sum(known() is not None for known in held))
        file = Held()
        held.append(ref(file))
        if len(held) <= 3:
            raise StorageError("write", "data/t-0/0.log", OSError(errno.ENOSPC, ""))

    worker.write("data", 2**30, lambda: None).then(lambda _: loop.stop())  # the next one is inline
    loop.run_forever()
    gc.disable()
    try:
        worker.write("data", 0, write).then(lambda _: loop.stop())
        loop.run_forever()
    finally:
        gc.enable()
    assert alive == [0, 0, 0, 0]


@pytest.mark.usefixtures("fast_retries")
def test_a_flush_on_a_full_disk_is_retried(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    results = Reports(loop)
    worker.sync("data", lambda: FullDiskWrite(3).work).then(results.report)
    loop.run_forever()
    assert results == [None]
    for action in ("sync", "sync the directory", "sync the file system of"):
        assert not StorageError(action, "data/t-0", OSError(errno.ENOSPC, "")).is_full


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failed_job_keeps_nothing_that_it_used(loop: AbstractEventLoop, worker: IoThreadPool, operation: str) -> None:
    results = Reports(loop)

    def submit() -> ref[Held]:
        held = Held()

        def run(used: Held = held) -> None:
            raise StorageError("read", str(used), OSError(errno.EIO, ""))

        OPERATIONS[operation](worker, run).then(results.report)
        return ref(held)

    gc.disable()
    try:
        kept = submit()
        loop.run_forever()
        assert [isinstance(result, StorageError) for result in results] == [True]
        until(lambda: kept() is None, "the job is forgotten")
    finally:
        gc.enable()


@pytest.mark.usefixtures("fast_retries")
def test_reads_on_a_full_disk_are_deferred(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    results: list[object] = []
    worker.on_space_change = lambda directory, has_space: results.append((directory, has_space))
    deferred = [FullDiskWrite(2**30) for _ in range(3 * MAX_UNREPORTED)]
    for each in deferred:
        worker.read("data", each.work).then(lambda io: results.append(io.value))

    def read(io: IoResult) -> None:
        results.append("another")
        assert io.value is None
        for each in deferred:
            each.times = 0
        worker.read("data", lambda: None).then(end)

    def end(_: IoResult) -> None:
        if results.count(None) == len(deferred):
            loop.stop()
        else:
            loop.call_later(0.001, end, _)

    worker.read("data", lambda: None).then(read)
    loop.run_forever()
    results.remove("another")
    assert results[0] == ("data", False)
    assert results[-2:] == [("data", True), None]
    assert results.count(("data", False)) == results.count(("data", True))


def test_a_deferred_read_fails_at_shutdown(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    results: list[StorageError | None] = []
    spaces: list[bool] = []

    def on_space_change(_directory: str, has_space: bool) -> None:
        spaces.append(has_space)
        loop.stop()

    worker.on_space_change = on_space_change
    worker.read("data", FullDiskWrite(2**30).work).then(lambda io: results.append(io.value))
    loop.run_forever()
    worker.stop()
    loop.call_soon(loop.stop)  # behind what the threads reported
    loop.run_forever()
    assert (results, spaces) == ([FULL], [False])


def test_deletions_do_not_wait_for_space(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    results = Reports(loop)
    worker.background("data", FullDiskWrite(1).work).then(results.report)
    loop.run_forever()
    assert results == [FULL]


def test_a_full_disk_is_an_error_at_shutdown(loop: AbstractEventLoop, worker: IoThreadPool) -> None:
    results = Reports(loop)
    spaces: list[bool] = []

    def on_space_change(_directory: str, has_space: bool) -> None:
        spaces.append(has_space)
        worker.stop_waiting_for_space()

    worker.on_space_change = on_space_change
    worker.write("data", 2**30, FullDiskWrite(2**30).work).then(results.report)
    loop.run_forever()
    assert (results, spaces) == ([FULL], [False])
