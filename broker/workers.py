"""The threads behind the Worker seam: per log directory one writer, one syncer, a few readers, one for the rest.

RULES    1. A write is done in line while the directory's queue is empty, the write is not large, the last one was a
            moment ago and recent ones were quick; else by the directory's writer thread, and then later ones queue
            behind it (design D12a).
         2. Syncs of one directory are done in rounds, in which all take part that wait (sync_rounds.py).
         3. Threads run system calls over closed inputs, nothing else; every report is delivered on the loop.
         4. Threads start when first needed. A directory has several readers: one that reads many cold megabytes does not
            hold up one that opens a log, and disks like it; not so many that a slow directory fills the process.
         5. A fault in a thread, anything but a StorageError, is raised on the loop.
NOT HERE What is written and what an error means (`replication/replica_manager.py`).
"""

from __future__ import annotations

import asyncio
import time

from broker.lanes import Lane, attempt, tell
from broker.sync_rounds import SyncRounds
from replication.work import Begin, Done, Run

INLINE_BYTES = 1024 * 1024
"""Larger writes go to the thread: copying them takes the better part of a millisecond."""
SLOW_S = 0.010
"""An inline write that takes this long sends the directory's writes to its thread for a while."""
QUICK_S = 0.002
READERS = 4
TRUSTED_S = 1.0
"""After so long a rest nobody knows whether the directory is still quick: its thread finds out."""
QUICK_IN_A_ROW = 16
"""So many quick writes of the thread bring the directory back in line."""


class _ReaderLane(Lane):
    """A few threads that take from one queue, one job at a time."""

    def put(self, run: Run, done: Done) -> None:
        if self.waiting >= len(self._threads) < READERS:
            self._start()
        self.waiting += 1
        self._queue.put((run, done))

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._loop.call_soon_threadsafe(self._report, [(job[1], attempt(job[0]))])
            del job  # it holds files open, and the next one may be long in coming


class _WriterLane(Lane):
    """A writer thread that knows whether its directory has been quick of late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        super().__init__(loop, name)
        self._quick = 0
        self._is_slow = False
        self._known_s = -TRUSTED_S  # when the directory was last seen at work

    def write(self, size: int, run: Run, done: Done) -> None:
        started = time.monotonic()
        if self.waiting or self._is_slow or size > INLINE_BYTES or started - self._known_s > TRUSTED_S:
            self.put(lambda: self._timed(run, size), done)
            return
        error = attempt(run)
        self._learn(started, size)
        tell(done, error)

    def _timed(self, run: Run, size: int) -> None:
        started = time.monotonic()
        run()
        self._learn(started, size)

    def _learn(self, started_s: float, size: int) -> None:
        """See how quick the directory is; work without bytes may not have touched it, and proves slowness only."""
        ended_s = time.monotonic()
        took_s = ended_s - started_s
        if took_s >= SLOW_S and size <= INLINE_BYTES:
            self._is_slow, self._quick = True, 0
        elif size and self._is_slow:
            self._quick = self._quick + 1 if took_s < QUICK_S else 0
            self._is_slow = self._quick < QUICK_IN_A_ROW
        if size:
            self._known_s = ended_s


class ThreadWorker:
    """The daemon's Worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writers: dict[str, _WriterLane] = {}
        self._syncers: dict[str, SyncRounds] = {}
        self._readers: dict[str, _ReaderLane] = {}
        self._names: dict[str, Lane] = {}
        self._background: dict[str, Lane] = {}

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        """Write `size` bytes in a log directory."""
        lane = self._writers.get(directory)
        if lane is None:
            lane = self._writers[directory] = _WriterLane(self._loop, f"writer {directory}")
        lane.write(size, run, done)

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        """Make something of a log directory durable, in the next round of its sync thread."""
        lane = self._syncers.get(directory)
        if lane is None:
            lane = self._syncers[directory] = SyncRounds(self._loop, f"syncer {directory}")
        lane.want(begin, done)

    def read(self, directory: str, run: Run, done: Done) -> None:
        """Read something of a log directory, in one of its reader threads."""
        lane = self._readers.get(directory)
        if lane is None:
            lane = self._readers[directory] = _ReaderLane(self._loop, f"reader {directory}")
        lane.put(run, done)

    def name(self, directory: str, run: Run, done: Done) -> None:
        """Make or rename something in a log directory, in the order of these calls."""
        lane = self._names.get(directory)
        if lane is None:
            lane = self._names[directory] = Lane(self._loop, f"names {directory}")
        lane.put(run, done)

    def background(self, directory: str, run: Run, done: Done) -> None:
        """Do something in a log directory that nobody waits for."""
        lane = self._background.get(directory)
        if lane is None:
            lane = self._background[directory] = Lane(self._loop, f"background {directory}")
        lane.put(run, done)

    def stop(self) -> None:
        """Finish everything queued; the reports still come on the loop."""
        for lane in self._lanes():
            lane.stop()

    def _lanes(self) -> list[Lane]:
        return [
            *self._writers.values(),
            *self._syncers.values(),
            *self._readers.values(),
            *self._names.values(),
            *self._background.values(),
        ]
