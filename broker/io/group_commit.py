"""Group commit: all flushes that are pending in a log directory when a round starts are made durable together.

RULES    1. One round is in progress; later requests join the next one. The first round starts at the end of the current
            iteration of the loop, so that requests that arrived together are flushed together. A round is bounded; the
            oldest requests are first.
         2. A round that only syncs files is submitted to a kernel queue (Linux AIO fsync), and the loop is notified when it
            completes: no thread takes the interpreter from the loop. Any other round, and what the kernel rejects, runs in
            the directory's flush thread.
         3. Results are reported in order, on the loop, failures first: a failure takes the directory offline, and no success
            of that round may be reported after it.
         4. The next round starts before the results are reported, so the disk works while responses are built. Not after a
            failure.
NOT HERE What is flushed (storage/io/flush_task.py), the meaning of a failure (`replication/partition/replica_manager.py`).
         Why: docs/decisions/0022-group-commit.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker.io.worker_thread import WorkerThread, attempt, is_full, report
from replication.io_executor import Begin, IoCallback, Run
from storage.io.aio_fsync import CAPACITY, NOT_SUBMITTED, SyncQueue
from storage.io.disk import Disk, File, is_plain, sync_results
from storage.io.flush_task import FlushTask, flush_errors, flush_together

MAX_PER_ROUND = CAPACITY
MAX_FIRST_FLUSHES = 32
"""Logs that are flushed for the first time in one round: each keeps a few files open until the round ends."""


class GroupCommit(WorkerThread):
    """The rounds of one log directory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._pending: list[tuple[Begin, IoCallback]] = []
        self._is_in_progress = False
        self._aio_queue: SyncQueue | None = None
        self._may_use_aio = True
        self._aio_round: tuple[list[FlushTask], list[File], list[IoCallback]] | None = None  # in the kernel queue

    def submit(self, begin: Begin, done: IoCallback) -> None:
        """Joins the next round."""
        self._pending.append((begin, done))
        if not self._is_in_progress:
            self._is_in_progress = True
            self._loop.call_soon(self._start_round)

    def stop(self) -> None:
        """Completes all pending flushes and ends the thread."""
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
        runs: list[Run] = []
        others = 0
        for begin, _ in pending:
            run = begin()
            runs.append(run)
            others += not (isinstance(run, FlushTask) and run.only_syncs)
            if others == MAX_FIRST_FLUSHES or len(runs) == MAX_PER_ROUND:
                break
        callbacks = [done for _, done in pending[: len(runs)]]
        self._pending = pending[len(runs) :] + self._pending
        if not self._submit_to_aio(runs, callbacks):
            self._submit_to_thread(lambda: self._run_round(runs), callbacks)

    # ------------------------------------------------------------ in a thread
    def _submit_to_thread(self, work: Callable[[], Sequence[Exception | None]], callbacks: list[IoCallback]) -> None:
        errors: list[Exception | None] = []
        self.put(lambda: errors.extend(work()), lambda _: self._complete(callbacks, errors))

    def _run_round(self, runs: list[Run]) -> list[Exception | None]:
        """The result of each; a sync that fails on a full disk is retried."""
        errors = _run_jobs(runs)
        return [
            self.retry_until_space(run, error) if is_full(error) else error
            for run, error in zip(runs, errors, strict=True)
        ]

    def _complete(self, callbacks: list[IoCallback], errors: Sequence[Exception | None]) -> None:
        outcomes = list(zip(callbacks, errors, strict=True))
        has_failed = any(errors)
        if has_failed:
            outcomes.sort(key=lambda outcome: outcome[1] is None)
        is_started = bool(self._pending) and not has_failed
        if is_started:
            self._start_round()
        for done, error in outcomes:
            report(done, error)
        if not is_started:
            self._start_round()

    # ------------------------------------------------------------ in the kernel
    def _submit_to_aio(self, runs: list[Run], callbacks: list[IoCallback]) -> bool:
        """Whether the kernel queue accepts the round (rule 2)."""
        syncs = [run for run in runs if isinstance(run, FlushTask) and run.only_syncs]
        files = [file for sync in syncs for file in sync.files]
        if len(syncs) < len(runs) or not 0 < len(files) <= CAPACITY or not all(map(is_plain, files)):
            return False
        if self._may_use_aio and self._aio_queue is None:
            self._open_aio_queue(syncs[0].disk)
        if self._aio_queue is None or not self._aio_queue.submit([file.fileno() for file in files]):
            return False
        self._aio_round = syncs, files, callbacks
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
        (syncs, files, callbacks), self._aio_round = self._aio_round, None
        if NOT_SUBMITTED in numbers:
            self._submit_to_thread(lambda: flush_errors(syncs, sync_results(files, numbers)), callbacks)
        else:
            self._complete(callbacks, flush_errors(syncs, sync_results(files, numbers)))


def _run_jobs(runs: list[Run]) -> list[Exception | None]:
    """The result of each."""
    syncs = [run for run in runs if isinstance(run, FlushTask)]
    outcomes = iter(flush_together(syncs) if syncs else ())
    return [next(outcomes) if isinstance(run, FlushTask) else attempt(run) for run in runs]
