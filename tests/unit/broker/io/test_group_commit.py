"""Group commit: rounds of syncs of one directory (broker/io/group_commit.py)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.io.group_commit import AT_A_TIME, NEW_AT_A_TIME, SyncRounds
from replication.io_executor import Run
from storage.io.aio_fsync import UNTRIED, SyncQueue
from storage.io.disk import Disk, File, StorageError
from storage.io.flush_task import Sync
from tests.support.faulty_disk import FaultyDisk


class DiskWithoutQueue(Disk):
    """The system offers no queue."""

    def sync_queue(self) -> SyncQueue | None:
        return None


class Rounds:
    """The rounds of a directory, and what happened in which order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.rounds = SyncRounds(loop, "rounds")
        self.events: list[str] = []

    def want(self, name: str, run: Callable[[], Run], then: Callable[[], None] = lambda: None) -> None:
        def begin() -> Run:
            self.events.append(f"begin {name}")
            return run()

        def done(error: StorageError | None) -> None:
            self.events.append(f"{name}: {error}" if error else f"end {name}")
            then()

        self.rounds.want(begin, done)

    def log(self, disk: Disk, name: str) -> Callable[[], Sync]:
        file: File = disk.open(f"{self.directory}/{name}", write=True, create=True)
        file.pwrite(b"bytes", 0)
        return lambda: Sync(disk, [file], lambda: True)

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
def test_all_that_wait_are_synced_in_one_round_and_who_comes_meanwhile_in_the_next(rounds: Rounds, disk: Disk) -> None:
    """Rule 1: what is to be synced is asked for when the round begins, so it covers what was written until then.

    Rule 4: the next one begins first.
    """
    for name in "abc":
        rounds.want(name, rounds.log(disk, name))
    assert rounds.events == []
    late = rounds.log(disk, "late"), rounds.log(disk, "later")
    rounds.loop.call_soon(lambda: rounds.want("late", late[0]))
    rounds.loop.call_soon(lambda: rounds.want("later", late[1], rounds.loop.stop))
    rounds.run()
    begun = ["begin a", "begin b", "begin c", "begin late", "begin later"]
    assert rounds.events == [*begun, "end a", "end b", "end c", "end late", "end later"]


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_round_of_files_needs_no_thread(rounds: Rounds, names: str) -> None:
    """Rule 2: threads would take the interpreter from the loop."""
    if SyncQueue.open() is None:
        pytest.skip("this system has no queue for syncs")
    disk = Disk()
    for name in names:
        rounds.want(name, rounds.log(disk, name), rounds.loop.stop)
    rounds.run()
    assert not rounds.rounds._threads
    rounds.want("new", lambda: Sync(disk, [], lambda: True, names=[str(rounds.directory)]), rounds.loop.stop)
    rounds.run()
    assert rounds.rounds._threads
    assert rounds.events[-1] == "end new"


@pytest.mark.parametrize(("is_new", "room"), [(False, AT_A_TIME), (True, NEW_AT_A_TIME)])
def test_a_round_has_room_for_so_many_and_who_waits_longest_comes_first(
    rounds: Rounds, *, is_new: bool, room: int
) -> None:
    """Rule 1: what a round has open is bounded."""
    disk = Disk()
    file = disk.open(f"{rounds.directory}/log", write=True, create=True)
    count = 2 * room + 1
    for number in range(count):
        names = [str(rounds.directory)] if is_new else []
        last = rounds.loop.stop if number == count - 1 else lambda: None
        rounds.want(str(number), lambda names=names: Sync(disk, [file], lambda: True, names=names), last)
    rounds.run()
    begun, told = ([event for event in rounds.events if event.startswith(kind)] for kind in ("begin", "end"))
    assert begun == [f"begin {number}" for number in range(count)]
    assert told == [f"end {number}" for number in range(count)]
    assert rounds.events.index("end 0") == 2 * room


def test_the_end_does_all_that_is_wanted_however_much(rounds: Rounds) -> None:
    """Several rounds' worth."""
    disk = Disk()
    file = disk.open(f"{rounds.directory}/log", write=True, create=True)
    for number in range(2 * AT_A_TIME + 1):
        rounds.want(str(number), lambda: Sync(disk, [file], lambda: True))
    rounds.rounds.stop()
    rounds.turn()
    assert sum(event.startswith("end") for event in rounds.events) == 2 * AT_A_TIME + 1


class RefusingQueue:
    """A queue that the kernel has no room in: io_submit says EAGAIN."""

    def fileno(self) -> int:
        return self.reader

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def begin(self, descriptors: Sequence[int], *, are_directories: bool = False) -> bool:
        assert descriptors
        return False

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class DiskWithRefusingQueue(Disk):
    """The system offers a queue, which takes nothing."""

    def sync_queue(self) -> Any:
        return RefusingQueue()


def test_what_the_kernel_does_not_take_goes_to_the_thread(rounds: Rounds) -> None:
    """Rule 2."""
    disk = DiskWithRefusingQueue()
    rounds.want("a", rounds.log(disk, "a"))
    rounds.want("b", rounds.log(disk, "b"), rounds.loop.stop)
    rounds.run()
    assert rounds.events == ["begin a", "begin b", "end a", "end b"]


@pytest.mark.parametrize(("numbers", "told"), [([0, errno.EIO], "b: Cannot sync"), ([0, UNTRIED], "end b")])
def test_each_file_of_a_round_has_its_own_answer_of_the_kernel(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, numbers: list[int], told: str
) -> None:
    """Rule 2: the error of one is not that of the others; what was left untried is synced by the thread."""
    if SyncQueue.open() is None:
        pytest.skip("this system has no queue for syncs")
    monkeypatch.setattr(SyncQueue, "_reap", lambda *_: numbers)
    disk = Disk()
    rounds.want("a", rounds.log(disk, "a"))
    rounds.want("b", rounds.log(disk, "b"), rounds.loop.stop)
    rounds.run()
    assert "end a" in rounds.events
    assert sum(event.startswith(told) for event in rounds.events) == 1
    assert bool(rounds.rounds._threads) is (UNTRIED in numbers)


def test_a_failed_sync_is_told_to_who_asked_for_it(rounds: Rounds) -> None:
    """Rule 3; design D12b: first, so that the others learn of it before they hear that they have what they asked for."""
    disk = FaultyDisk()
    disk.fail_syncs = 5
    rounds.want("whole", rounds.log(Disk(), "whole"))
    rounds.want("broken", rounds.log(disk, "broken"))
    rounds.want("other", lambda: lambda: None, rounds.loop.stop)
    rounds.run()
    broken = f"broken: Cannot sync {rounds.directory}/broken: Input/output error."
    assert rounds.events[3:] == [broken, "end whole", "end other"]


def test_a_failed_sync_is_told_before_the_next_round_begins(rounds: Rounds) -> None:
    """Rule 4: who was to take part in it may have lost his directory."""
    disk = FaultyDisk()
    disk.fail_syncs = 5
    rounds.want("broken", rounds.log(disk, "broken"))
    rounds.loop.call_soon(lambda: rounds.want("next", lambda: lambda: None, rounds.loop.stop))
    rounds.run()
    broken = f"broken: Cannot sync {rounds.directory}/broken: Input/output error."
    assert rounds.events == ["begin broken", broken, "begin next", "end next"]


def test_the_end_does_what_is_wanted(rounds: Rounds) -> None:
    """A round that the kernel has is waited for; what was not begun is done in the thread."""
    disk = Disk()
    for name in "ab":
        rounds.want(name, rounds.log(disk, name))
    rounds.turn()
    assert rounds.events == ["begin a", "begin b"]
    rounds.want("c", rounds.log(disk, "c"))
    rounds.rounds.stop()
    rounds.turn()
    assert rounds.events == ["begin a", "begin b", "begin c", "end a", "end b", "end c"]
