"""The threads behind the Worker seam: per log directory one writer, one syncer, a few readers, one for the rest.

RULES    1. A write is done in line while the directory's queue is empty, the write is not large, the last one was a
            moment ago and recent ones were quick; else by the directory's writer thread, and then later ones queue
            behind it (design D12a).
         2. Syncs of one directory are done in rounds, in which all take part that wait (group_commit.py).
         3. Threads run system calls over closed inputs, nothing else; every report is delivered on the loop.
         4. Threads start when first needed. A directory has several readers where one is not quick: who reads many cold
            megabytes does not hold up one that opens a log; not so many that a slow directory fills the process (reader_pool.py).
         5. A fault in a thread, anything but a StorageError, is raised on the loop.
NOT HERE What is written and what an error means (`replication/partition/replica_manager.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from broker.io.group_commit import SyncRounds
from broker.io.reader_pool import ReaderLane
from broker.io.worker_thread import Lane, attempt, is_full, tell
from replication.io_executor import Begin, Done, Run

INLINE_BYTES = 1024 * 1024
"""Larger writes go to the thread: copying them takes the better part of a millisecond."""
SLOW_S = 0.010
"""An inline write that takes this long sends the directory's writes to its thread for a while."""
QUICK_S = 0.002
TRUSTED_S = 1.0
"""After so long a rest nobody knows whether the directory is still quick: its thread finds out."""
QUICK_IN_A_ROW = 16
"""So many quick writes of the thread bring the directory back in line."""


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
        if is_full(error):  # which is waited for in the thread
            self.put(run, done)
        else:
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


class _ImpatientLane(Lane):
    """A lane that tells of a full disk as of any failure: deletions come this way, and make room."""

    def wait_for_room(self, run: Run, error: Exception | None) -> Exception | None:  # noqa: ARG002
        return error


class ThreadWorker:
    """The daemon's Worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writers: dict[str, _WriterLane] = {}
        self._syncers: dict[str, SyncRounds] = {}
        self._readers: dict[str, ReaderLane] = {}
        self._names: dict[str, Lane] = {}
        self._background: dict[str, Lane] = {}
        self._without_room: dict[str, int] = {}  # how many lanes wait for it
        self.on_room: Callable[[str, bool], None] = _nothing
        """Told of a log directory that is full, and again when it has room."""

    def write(self, directory: str, size: int, run: Run, done: Done) -> None:
        """Write `size` bytes in a log directory."""
        lane = self._writers.get(directory)
        if lane is None:
            lane = self._writers[directory] = _WriterLane(self._loop, f"writer {directory}")
            lane.on_room = partial(self._room, directory)
        lane.write(size, run, done)

    def sync(self, directory: str, begin: Begin, done: Done) -> None:
        """Make something of a log directory durable, in the next round of its sync thread."""
        lane = self._syncers.get(directory)
        if lane is None:
            lane = self._syncers[directory] = SyncRounds(self._loop, f"syncer {directory}")
            lane.on_room = partial(self._room, directory)
        lane.want(begin, done)

    def read(self, directory: str, run: Run, done: Done) -> None:
        """Read something of a log directory, in one of its reader threads."""
        lane = self._readers.get(directory)
        if lane is None:
            lane = self._readers[directory] = ReaderLane(self._loop, f"reader {directory}")
            lane.on_room = partial(self._room, directory)
        lane.put(run, done)

    def name(self, directory: str, run: Run, done: Done) -> None:
        """Make or rename something in a log directory, in the order of these calls."""
        lane = self._names.get(directory)
        if lane is None:
            lane = self._names[directory] = Lane(self._loop, f"names {directory}")
            lane.on_room = partial(self._room, directory)
        lane.put(run, done)

    def background(self, directory: str, run: Run, done: Done) -> None:
        """Do something in a log directory that nobody waits for."""
        lane = self._background.get(directory)
        if lane is None:
            lane = self._background[directory] = _ImpatientLane(self._loop, f"background {directory}")
        lane.put(run, done)

    def _room(self, directory: str, has_room: bool) -> None:  # noqa: FBT001
        """Several lanes may be waiting, and one may have found what another has not."""
        without = self._without_room.get(directory, 0) + (-1 if has_room else 1)
        self._without_room[directory] = without
        if without == (0 if has_room else 1):
            self.on_room(directory, has_room)

    def wait_no_longer(self) -> None:
        """Tell of a full disk as of any failure: the end is near."""
        for lane in self._lanes():
            lane.wait_no_longer()

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


def _nothing(_directory: str, _has_room: bool) -> None:  # noqa: FBT001
    """Nobody asks."""
