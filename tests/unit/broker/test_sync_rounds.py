"""Group commit: rounds of syncs of one directory (broker/sync_rounds.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.sync_rounds import SyncRounds
from replication.work import Run
from storage.disk import Disk, File, StorageError
from storage.parallel_sync import SyncQueue
from storage.syncs import Sync
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
    """Rule 1: what is to be synced is asked for when the round begins, so it covers what was written until then."""
    for name in "abc":
        rounds.want(name, rounds.log(disk, name))
    assert rounds.events == []
    late = rounds.log(disk, "late"), rounds.log(disk, "later")
    rounds.loop.call_soon(lambda: rounds.want("late", late[0]))
    rounds.loop.call_soon(lambda: rounds.want("later", late[1], rounds.loop.stop))
    rounds.run()
    first = ["begin a", "begin b", "begin c", "end a", "end b", "end c"]
    assert rounds.events == [*first, "begin late", "begin later", "end late", "end later"]


def test_a_round_of_several_files_needs_no_thread(rounds: Rounds) -> None:
    """Rule 2: threads would take the interpreter from the loop."""
    if SyncQueue.open() is None:
        pytest.skip("this system has no queue for syncs")
    disk = Disk()
    rounds.want("a", rounds.log(disk, "a"))
    rounds.want("b", rounds.log(disk, "b"), rounds.loop.stop)
    rounds.run()
    assert rounds.rounds.waiting == 0
    assert not rounds.rounds._threads
    rounds.want("alone", rounds.log(disk, "alone"), rounds.loop.stop)
    rounds.run()
    assert rounds.rounds._threads
    assert rounds.events[-1] == "end alone"


def test_a_failed_sync_is_told_to_who_asked_for_it(rounds: Rounds) -> None:
    """Rule 3; design D12b: the others of the round have what they asked for."""
    disk = FaultyDisk()
    disk.fail_syncs = 5
    rounds.want("whole", rounds.log(Disk(), "whole"))
    rounds.want("broken", rounds.log(disk, "broken"))
    rounds.want("other", lambda: lambda: None, rounds.loop.stop)
    rounds.run()
    broken = f"broken: Cannot sync {rounds.directory}/broken: Input/output error."
    assert rounds.events[3:] == ["end whole", broken, "end other"]


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
    assert rounds.events == ["begin a", "begin b", "end a", "end b", "begin c", "end c"]
