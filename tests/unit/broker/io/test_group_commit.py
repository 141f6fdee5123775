"""Rounds of flushes (broker/io/group_commit.py)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from broker.io.commit_delay import CommitDelay
from broker.io.group_commit import MAX_FIRST_FLUSHES, MAX_PER_ROUND, MAX_WAIT_S, GroupCommit
from replication.io_executor import IoResult, Run
from storage.io.aio_fsync import NOT_SUBMITTED, SyncQueue
from storage.io.disk import Disk, File
from storage.io.flush_task import FlushTask
from tests.support.faulty_disk import FaultyDisk

_PATIENCE_S = 5.0


class DiskWithoutQueue(Disk):
    """A system without AIO."""

    def sync_queue(self) -> SyncQueue | None:
        return None


class Delay(CommitDelay):
    """Always or never waits, and remembers how the waits ended."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = False
        self.outcomes: list[bool] = []
        self.longest_s = 0.0

    def expected(self, completed: int, pending: int, round_s: float) -> int:
        return completed + pending if self.waits else 0

    def ended(self, waited_s: float, *, is_complete: bool) -> None:
        self.outcomes.append(is_complete)
        self.longest_s = max(self.longest_s, waited_s)


class Rounds:
    """The rounds of a directory, and their events in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.delay = Delay()
        self.rounds = GroupCommit(loop, "rounds", self.delay)
        self.events: list[str] = []

    def submit(self, name: str, run: Callable[[], Run], then: Callable[[], object] = lambda: None) -> None:
        def begin() -> Run:
            self.events.append(f"begin {name}")
            return run()

        def on_flushed(flushed: IoResult) -> None:
            self.events.append(f"{name}: {flushed.value}" if flushed.value else f"end {name}")
            then()

        self.rounds.submit(begin).then(on_flushed)

    def log(self, disk: Disk, name: str) -> Callable[[], FlushTask]:
        file: File = disk.open(f"{self.directory}/{name}", write=True, create=True)
        file.pwrite(b"bytes", 0)
        return lambda: FlushTask(disk, [file], lambda: True)

    def run(self) -> None:
        self.loop.run_forever()

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    loop = asyncio.new_event_loop()
    rounds = Rounds(loop, tmp_path)
    yield rounds
    rounds.rounds.stop()
    loop.close()


@pytest.mark.parametrize("disk", [Disk(), DiskWithoutQueue(), FaultyDisk()], ids=lambda disk: type(disk).__name__)
def test_pending_flushes_share_a_round_and_the_next_round_starts_before_the_reports(rounds: Rounds, disk: Disk) -> None:
    for name in "abc":
        rounds.submit(name, rounds.log(disk, name))
    assert rounds.events == []
    late = rounds.log(disk, "late"), rounds.log(disk, "later")
    rounds.loop.call_soon(lambda: rounds.submit("late", late[0]))
    rounds.loop.call_soon(lambda: rounds.submit("later", late[1], rounds.loop.stop))
    rounds.run()
    started = ["begin a", "begin b", "begin c", "begin late", "begin later"]
    assert rounds.events == [*started, "end a", "end b", "end c", "end late", "end later"]


def needs_queue() -> None:
    if SyncQueue.open() is None:
        pytest.skip("this system has no queue for syncs")


def test_logs_that_join_a_flush_end_the_wait_for_the_next_round(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_queue()
    monkeypatch.setattr("broker.io.group_commit.MAX_WAIT_S", _PATIENCE_S)
    rounds.delay.waits = True
    disk = Disk()
    rounds.submit("shared", rounds.log(disk, "shared"), lambda: rounds.loop.call_soon(again))
    for _ in range(3):
        rounds.rounds.join()
    second = rounds.log(disk, "shared")

    def again() -> None:
        rounds.delay.waits = False
        rounds.submit("second", second, rounds.loop.stop)
        for _ in range(3):
            rounds.rounds.join()

    rounds.run()
    assert rounds.delay.outcomes == [True]
    assert rounds.delay.longest_s < _PATIENCE_S
    assert rounds.rounds.flushes == 8


def test_a_round_that_waits_has_the_flushes_of_those_that_were_acknowledged(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_queue()
    monkeypatch.setattr("broker.io.group_commit.MAX_WAIT_S", _PATIENCE_S)
    rounds.delay.waits = True
    disk = Disk()
    rounds.submit("a", rounds.log(disk, "a"), lambda: rounds.loop.call_soon(again))
    late, second = rounds.log(disk, "late"), rounds.log(disk, "a2")

    def again() -> None:
        rounds.delay.waits = False
        rounds.submit("a2", second, rounds.loop.stop)

    rounds.loop.call_soon(lambda: rounds.submit("late", late))
    rounds.run()
    assert rounds.events == ["begin a", "end a", "begin late", "begin a2", "end late", "end a2"]
    assert rounds.delay.outcomes == [True]
    assert rounds.delay.longest_s < _PATIENCE_S


def test_a_round_waits_for_a_limited_time(rounds: Rounds) -> None:
    needs_queue()
    rounds.delay.waits = True
    disk = Disk()
    rounds.submit("a", rounds.log(disk, "a"))
    late = rounds.log(disk, "late")
    rounds.loop.call_soon(lambda: rounds.submit("late", late, rounds.loop.stop))
    rounds.run()
    assert rounds.events == ["begin a", "end a", "begin late", "end late"]
    assert rounds.delay.outcomes == [False]


def test_a_wait_without_flushes_ends_and_the_next_flush_starts_a_round(rounds: Rounds) -> None:
    needs_queue()
    rounds.delay.waits = True
    disk = Disk()
    rounds.submit("a", rounds.log(disk, "a"), lambda: rounds.loop.call_later(2 * MAX_WAIT_S, rounds.loop.stop))
    rounds.run()
    assert rounds.delay.outcomes == [False]
    rounds.submit("b", rounds.log(disk, "b"), rounds.loop.stop)
    rounds.run()
    assert rounds.events == ["begin a", "end a", "begin b", "end b"]


def test_stop_ends_a_wait_and_flushes_what_is_pending(rounds: Rounds) -> None:
    needs_queue()
    rounds.delay.waits = True
    disk = Disk()
    rounds.submit("a", rounds.log(disk, "a"), rounds.loop.stop)
    late = rounds.log(disk, "late")
    rounds.loop.call_soon(lambda: rounds.submit("late", late))
    rounds.run()
    rounds.rounds.stop()
    rounds.turn()
    assert rounds.events == ["begin a", "end a", "begin late", "end late"]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_round_of_files_uses_no_thread(rounds: Rounds, names: str) -> None:
    needs_queue()
    disk = Disk()
    for name in names:
        rounds.submit(name, rounds.log(disk, name), rounds.loop.stop)
    rounds.run()
    assert not rounds.rounds._threads
    rounds.submit(
        "new", lambda: FlushTask(disk, [], lambda: True, directories=[str(rounds.directory)]), rounds.loop.stop
    )
    rounds.run()
    assert rounds.rounds._threads
    assert rounds.events[-1] == "end new"


@pytest.mark.parametrize(("is_new", "limit"), [(False, MAX_PER_ROUND), (True, MAX_FIRST_FLUSHES)])
def test_a_round_is_bounded_and_takes_the_oldest_flushes(rounds: Rounds, *, is_new: bool, limit: int) -> None:
    disk = Disk()
    file = disk.open(f"{rounds.directory}/log", write=True, create=True)
    count = 2 * limit + 1
    for number in range(count):
        names = [str(rounds.directory)] if is_new else []
        last = rounds.loop.stop if number == count - 1 else lambda: None
        flush = partial(FlushTask, disk, [file], lambda: True, directories=names)
        rounds.submit(str(number), flush, last)
    rounds.run()
    started, expected = ([event for event in rounds.events if event.startswith(kind)] for kind in ("begin", "end"))
    assert started == [f"begin {number}" for number in range(count)]
    assert expected == [f"end {number}" for number in range(count)]
    assert rounds.events.index("end 0") == 2 * limit


def test_stop_runs_several_rounds_of_pending_flushes(rounds: Rounds) -> None:
    disk = Disk()
    file = disk.open(f"{rounds.directory}/log", write=True, create=True)
    for number in range(2 * MAX_PER_ROUND + 1):
        rounds.submit(str(number), lambda: FlushTask(disk, [file], lambda: True))
    rounds.rounds.stop()
    rounds.turn()
    assert sum(event.startswith("end") for event in rounds.events) == 2 * MAX_PER_ROUND + 1


def test_a_round_that_the_kernel_refuses_runs_in_the_thread(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncQueue, "submit", lambda *_, **__: False)  # as io_submit does with EAGAIN
    rounds.submit("a", rounds.log(Disk(), "a"))
    rounds.submit("b", rounds.log(Disk(), "b"), rounds.loop.stop)
    rounds.run()
    assert rounds.events == ["begin a", "begin b", "end a", "end b"]
    assert rounds.rounds._threads


@pytest.mark.parametrize(("numbers", "expected"), [([0, errno.EIO], "b: Cannot sync"), ([0, NOT_SUBMITTED], "end b")])
def test_each_file_of_a_round_has_its_own_result(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, numbers: list[int], expected: str
) -> None:
    needs_queue()
    monkeypatch.setattr(SyncQueue, "_reap", lambda *_: numbers)
    disk = Disk()
    rounds.submit("a", rounds.log(disk, "a"))
    rounds.submit("b", rounds.log(disk, "b"), rounds.loop.stop)
    rounds.run()
    assert "end a" in rounds.events
    assert sum(event.startswith(expected) for event in rounds.events) == 1
    assert bool(rounds.rounds._threads) is (NOT_SUBMITTED in numbers)


def test_a_failed_flush_is_reported_first(rounds: Rounds) -> None:
    disk = FaultyDisk()
    disk.fail_syncs = 5
    rounds.submit("whole", rounds.log(Disk(), "whole"))
    rounds.submit("broken", rounds.log(disk, "broken"))
    rounds.submit("other", lambda: lambda: None, rounds.loop.stop)
    rounds.run()
    broken = f"broken: Cannot sync {rounds.directory}/broken: Input/output error."
    assert rounds.events[3:] == [broken, "end whole", "end other"]


def test_a_failed_flush_is_reported_before_the_next_round_starts(rounds: Rounds) -> None:
    disk = FaultyDisk()
    disk.fail_syncs = 5
    rounds.submit("broken", rounds.log(disk, "broken"))
    rounds.loop.call_soon(lambda: rounds.submit("next", lambda: lambda: None, rounds.loop.stop))
    rounds.run()
    broken = f"broken: Cannot sync {rounds.directory}/broken: Input/output error."
    assert rounds.events == ["begin broken", broken, "begin next", "end next"]


def test_stop_waits_for_the_kernel_and_runs_pending_flushes(rounds: Rounds) -> None:
    disk = Disk()
    for name in "ab":
        rounds.submit(name, rounds.log(disk, name))
    rounds.turn()
    assert rounds.events == ["begin a", "begin b"]
    rounds.submit("c", rounds.log(disk, "c"))
    rounds.rounds.stop()
    rounds.turn()
    assert rounds.events == ["begin a", "begin b", "begin c", "end a", "end b", "end c"]
