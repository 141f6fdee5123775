"""Group commit: all flushes that are pending in a log directory when a round starts are made durable together.

RULES    1. One round is in progress; later requests join the next one. The first round starts at the end of the current
            iteration of the loop, so that requests that arrived together are flushed together. A round is bounded; the
            oldest requests are first. Any number of partitions with one log are one flush.
         2. A round that only syncs files is submitted to a kernel queue (Linux AIO fsync), and the loop is notified when it
            completes: no thread takes the interpreter from the loop. Any other round, and what the kernel rejects, runs in
            the directory's flush thread.
         3. Results are reported in order, on the loop, failures first: a failure takes the directory offline, and no success
            of that round may be reported after it.
         4. The next round starts before the results are reported, so the disk works while responses are built; or, if that
            is faster (commit_delay.py), when as many flushes are pending as the last round and the next one would have, at the
            latest after MAX_WAIT_S. Not after a failure.
NOT HERE What is flushed (storage/io/flush_task.py), the meaning of a failure (`replication/partition/flushes.py`).
         Why: docs/decisions/0022-group-commit.md
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.io.commit_delay import CommitDelay
from broker.io.worker_thread import Job, WorkerThread, is_full
from broker.process.histograms import Histogram
from replication.cooperative_tasks import no_op
from replication.io_executor import Begin, IoResult
from storage.io.aio_fsync import CAPACITY, NOT_SUBMITTED, SyncQueue
from storage.io.disk import Disk, File, is_plain, sync_results
from storage.io.flush_task import FlushTask, flush_errors, flush_together

MAX_PER_ROUND = CAPACITY
MAX_FIRST_FLUSHES = 32
"""Logs that are flushed for the first time in one round: each keeps a few files open until the round ends."""
MAX_WAIT_S = 0.001
"""The shortest time of uvloop's timers."""


class _Flush(Job):
    """A flush; `begin` sets what to run."""

    __slots__ = ("begin",)

    def __init__(self, begin: Begin) -> None:
        super().__init__(no_op)
        self.begin = begin

    @property
    def only_syncs(self) -> bool:
        """Whether it syncs files and nothing else."""
        return isinstance(self.run, FlushTask) and self.run.only_syncs


class _AioRound(NamedTuple):
    """A round in the kernel queue."""

    flushes: list[_Flush]
    syncs: list[FlushTask]
    files: list[File]

    def errors(self, numbers: list[int]) -> Sequence[Exception | None]:
        """The errors of the flushes, by the error numbers of the files."""
        return flush_errors(self.syncs, sync_results(self.files, numbers))


class GroupCommit(WorkerThread):
    """The rounds of one log directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, delay: CommitDelay | None = None) -> None:
        super().__init__(loop, name)
        self._delay = delay or CommitDelay()
        self._started_s = 0.0  # the round in progress, or the wait for the next one
        self._expected = 0  # pending flushes that end the wait; 0: there is no wait
        self._wait_timer: asyncio.Handle | None = None
        self._pending: list[_Flush] = []
        self._joined = 0  # further logs of pending flushes
        self._round_size = 0  # flushes of the round in progress, with the logs that joined them
        self._is_in_progress = False
        self._aio_queue: SyncQueue | None = None
        self._may_use_aio = True
        self._aio_round: _AioRound | None = None
        self.rounds = Histogram()
        """How long rounds took."""
        self.flushes = 0
        """Flushes in all rounds, counted by logs."""

    def submit(self, begin: Begin) -> IoResult:
        """Joins the next round."""
        flush = _Flush(begin)
        self._pending.append(flush)
        if self._expected:
            if self._waiting >= self._expected:
                self._end_wait()
        elif not self._is_in_progress:
            self._is_in_progress = True
            self._loop.call_soon(self._start_round)
        return flush

    def join(self) -> None:
        """Counts one more log of a pending flush, which is the flush of a log that several partitions share."""
        self._joined += 1
        if self._expected and self._waiting >= self._expected:
            self._end_wait()

    @property
    def _waiting(self) -> int:
        """The logs that wait for the next round."""
        return len(self._pending) + self._joined

    def stop(self) -> None:
        """Completes all pending flushes and ends the thread."""
        if self._expected:
            self._end_wait()
        aio_queue, self._aio_queue = self._aio_queue, None
        self._may_use_aio = False
        if aio_queue is not None:
            self._loop.remove_reader(aio_queue.fileno())
            if self._aio_round is not None:
                self._on_aio_complete(aio_queue.wait())
            aio_queue.close()
        while self._pending:
            self._start_round()
        super().stop()

    def _start_round(self) -> None:
        self._is_in_progress = bool(self._pending)
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        flushes: list[_Flush] = []
        others = 0
        for flush in pending:
            flush.run = flush.begin()
            flushes.append(flush)
            others += not flush.only_syncs
            if others == MAX_FIRST_FLUSHES or len(flushes) == MAX_PER_ROUND:
                break
        self._pending = pending[len(flushes) :] + self._pending
        self._round_size, self._joined = len(flushes) + self._joined, 0
        self._started_s = time.monotonic()
        if not self._submit_to_aio(flushes):
            self._submit_to_thread(flushes, lambda: self._run_round(flushes))

    # ------------------------------------------------------------ in a thread
    def _submit_to_thread(self, flushes: list[_Flush], work: Callable[[], Sequence[Exception | None]]) -> None:
        errors: list[Exception | None] = []
        self.put(lambda: errors.extend(work())).then(lambda _: self._complete(flushes, errors))

    def _run_round(self, flushes: list[_Flush]) -> list[Exception | None]:
        """The result of each; a sync that fails on a full disk is retried."""
        syncs = [flush.run for flush in flushes if isinstance(flush.run, FlushTask)]
        outcomes = iter(flush_together(syncs) if syncs else ())
        for flush in flushes:
            if isinstance(flush.run, FlushTask):
                flush.failure = next(outcomes)
            else:
                flush.attempt()
        for flush in flushes:
            if is_full(flush.failure):
                self.retry_until_space(flush)
        return [flush.failure for flush in flushes]

    def _complete(self, flushes: list[_Flush], errors: Sequence[Exception | None]) -> None:
        self.rounds.record(int((time.monotonic() - self._started_s) * 1e9))
        self.flushes += self._round_size
        for flush, error in zip(flushes, errors, strict=True):
            flush.failure = error
        has_failed = any(errors)
        if has_failed:
            flushes.sort(key=lambda flush: flush.failure is None)
        is_handled = not has_failed and (self._begin_wait(self._round_size) or bool(self._pending))
        if is_handled and not self._expected:
            self._start_round()
        for flush in flushes:
            flush.report()
        if not is_handled:
            self._start_round()

    def _begin_wait(self, completed: int) -> bool:
        """Whether the next round waits for the flushes that follow the completed ones (rule 4)."""
        if self._aio_queue is None:  # shutting down, or a slow system
            return False
        now_s = time.monotonic()
        self._expected = self._delay.expected(completed, self._waiting, now_s - self._started_s)
        if not self._expected:
            return False
        self._started_s = now_s
        self._wait_timer = self._loop.call_later(MAX_WAIT_S, self._end_wait)
        return True

    def _end_wait(self) -> None:
        assert self._wait_timer is not None
        self._wait_timer.cancel()
        self._delay.ended(time.monotonic() - self._started_s, is_complete=self._waiting >= self._expected)
        self._expected = 0
        self._loop.call_soon(self._start_round)

    # ------------------------------------------------------------ in the kernel
    def _submit_to_aio(self, flushes: list[_Flush]) -> bool:
        """Whether the kernel queue accepts the round (rule 2)."""
        syncs = [flush.run for flush in flushes if isinstance(flush.run, FlushTask) and flush.only_syncs]
        files = list({file: None for sync in syncs for file in sync.files})  # logs may share a file
        if len(syncs) < len(flushes) or not 0 < len(files) <= CAPACITY or not all(map(is_plain, files)):
            return False
        if self._may_use_aio and self._aio_queue is None:
            self._open_aio_queue(syncs[0].disk)
        if self._aio_queue is None or not self._aio_queue.submit([file.fileno() for file in files]):
            return False
        self._aio_round = _AioRound(flushes, syncs, files)
        return True

    def _open_aio_queue(self, disk: Disk) -> None:
        self._aio_queue = disk.sync_queue()
        self._may_use_aio = self._aio_queue is not None
        if self._aio_queue is not None:
            self._loop.add_reader(self._aio_queue.fileno(), self._on_aio_readable)

    def _on_aio_readable(self) -> None:
        assert self._aio_queue is not None
        numbers = self._aio_queue.poll()
        if numbers is not None and self._aio_round is not None:
            self._on_aio_complete(numbers)

    def _on_aio_complete(self, numbers: list[int]) -> None:
        assert self._aio_round is not None
        aio_round, self._aio_round = self._aio_round, None
        if NOT_SUBMITTED in numbers:
            self._submit_to_thread(aio_round.flushes, lambda: aio_round.errors(numbers))
        else:
            self._complete(aio_round.flushes, aio_round.errors(numbers))
