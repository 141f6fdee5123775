"""Rounds of syncs: what waits in a log directory when a round begins is made durable in it, together (group commit).

RULES    1. One round is under way; who comes meanwhile takes part in the next. The first one begins at the end of the
            loop's turn, so that requests which came together are synced together. A round has room for so many; those
            who wait longest come first.
         2. A round that is nothing but files goes to a queue of the kernel, and the loop is told when it has ended: no
            thread of ours takes part, so none takes the interpreter from the loop. Any other goes to the directory's
            sync thread, and so does what the kernel does not take.
         3. What became of a round is told in its order, on the loop; failures first, since who hears of one gives the
            directory up, and nobody is told then that a sync of this round has succeeded.
         4. Who waits for the next round has it begun before that is told: the disk is at work while answers are made.
            Not behind a failure.
NOT HERE What is to be synced (storage/io/flush_task.py), what a failure means (`replication/partition/replica_manager.py`).
         Why so: docs/decisions/0022-group-commit.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.io.worker_thread import Lane, attempt, is_full, tell
from replication.io_executor import Begin, Done, Run
from storage.io.aio_fsync import CAPACITY, UNTRIED, SyncQueue
from storage.io.disk import Disk, File, is_plain, sync_results
from storage.io.flush_task import Sync, errors_of, sync_together

AT_A_TIME = CAPACITY
NEW_AT_A_TIME = 32
"""Logs that are flushed for the first time in a round: each has a few files open until it is over."""


class _Round(NamedTuple):
    """A round that the kernel does."""

    syncs: list[Sync]
    files: list[File]
    dones: list[Done]


class SyncRounds(Lane):
    """The rounds of one directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._wanted: list[tuple[Begin, Done]] = []
        self._is_under_way = False
        self._kernel: SyncQueue | None = None
        self._may_ask_kernel = True
        self._in_kernel: _Round | None = None

    def want(self, begin: Begin, done: Done) -> None:
        """Take part in the next round."""
        self._wanted.append((begin, done))
        if not self._is_under_way:
            self._is_under_way = True
            self._loop.call_soon(self._begin)

    def stop(self) -> None:
        """Do what is wanted, and end the thread."""
        kernel, self._kernel = self._kernel, None
        self._may_ask_kernel = False
        if kernel is not None:
            self._loop.remove_reader(kernel.fileno())
            if self._in_kernel is not None:
                self._has_ended(kernel.wait())
            kernel.close()
        while self._wanted:
            self._begin()
        super().stop()

    def _begin(self) -> None:
        self._is_under_way = bool(self._wanted)
        if not self._wanted:
            return
        wanted, self._wanted = self._wanted, []
        runs: list[Run] = []
        others = 0
        for begin, _ in wanted:
            run = begin()
            runs.append(run)
            others += not (isinstance(run, Sync) and run.is_of_files)
            if others == NEW_AT_A_TIME or len(runs) == AT_A_TIME:
                break
        dones = [done for _, done in wanted[: len(runs)]]
        self._wanted = wanted[len(runs) :] + self._wanted
        if not self._hand_to_kernel(runs, dones):
            self._hand_to_thread(lambda: self._do_all(runs), dones)

    # ------------------------------------------------------------ in a thread
    def _hand_to_thread(self, work: Callable[[], Sequence[Exception | None]], dones: list[Done]) -> None:
        errors: list[Exception | None] = []
        self.put(lambda: errors.extend(work()), lambda _: self._end(dones, errors))

    def _do_all(self, runs: list[Run]) -> list[Exception | None]:
        """What became of each; what found no room when the files were synced is done again."""
        errors = _do(runs)
        return [
            self.wait_for_room(run, error) if is_full(error) else error for run, error in zip(runs, errors, strict=True)
        ]

    def _end(self, dones: list[Done], errors: Sequence[Exception | None]) -> None:
        outcomes = list(zip(dones, errors, strict=True))
        has_failed = any(errors)
        if has_failed:
            outcomes.sort(key=lambda outcome: outcome[1] is None)
        is_begun = bool(self._wanted) and not has_failed
        if is_begun:
            self._begin()
        for done, error in outcomes:
            tell(done, error)
        if not is_begun:
            self._begin()

    # ------------------------------------------------------------ in the kernel
    def _hand_to_kernel(self, runs: list[Run], dones: list[Done]) -> bool:
        """Whether it has taken the round (rule 2)."""
        syncs = [run for run in runs if isinstance(run, Sync) and run.is_of_files]
        files = [file for sync in syncs for file in sync.files]
        if len(syncs) < len(runs) or not 0 < len(files) <= CAPACITY or not all(map(is_plain, files)):
            return False
        if self._may_ask_kernel and self._kernel is None:
            self._open(syncs[0].disk)
        if self._kernel is None or not self._kernel.begin([file.fileno() for file in files]):
            return False
        self._in_kernel = _Round(syncs, files, dones)
        return True

    def _open(self, disk: Disk) -> None:
        self._kernel = disk.sync_queue()
        self._may_ask_kernel = self._kernel is not None
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._kernel is not None
        numbers = self._kernel.ended()
        if numbers is not None and self._in_kernel is not None:
            self._has_ended(numbers)

    def _has_ended(self, numbers: list[int]) -> None:
        assert self._in_kernel is not None
        (syncs, files, dones), self._in_kernel = self._in_kernel, None
        if UNTRIED in numbers:
            self._hand_to_thread(lambda: errors_of(syncs, sync_results(files, numbers)), dones)
        else:
            self._end(dones, errors_of(syncs, sync_results(files, numbers)))


def _do(runs: list[Run]) -> list[Exception | None]:
    """What became of each."""
    syncs = [run for run in runs if isinstance(run, Sync)]
    outcomes = iter(sync_together(syncs) if syncs else ())
    return [next(outcomes) if isinstance(run, Sync) else attempt(run) for run in runs]
