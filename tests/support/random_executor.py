"""An executor whose queues advance in random order: what threads of real log directories may do, in one thread.

RULES    1. As `IoExecutor` demands: the work of a queue runs in its order, reads in any. A flush begins when it runs.
         2. A write runs inline with a probability, unless its queue is not empty.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque

from replication.io_executor import SUCCEEDED, Begin, IoResult, Run
from tests.support.replica_harness import HeldWork


class RandomExecutor:
    """Runs queued work when the test calls it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._inline_rate = rng.choice((0.0, 0.5, 0.9))
        self._queues: defaultdict[tuple[str, str], deque[HeldWork]] = defaultdict(deque)
        self._reads: list[HeldWork] = []

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        if not self._queues[directory, "write"] and self._rng.random() < self._inline_rate:
            run()
            return SUCCEEDED
        return self._push(directory, "write", run)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        def run() -> None:
            begin()()

        return self._push(directory, "sync", run)

    def join_sync(self, directory: str) -> None:
        """Do nothing: any number of logs joins a flush."""

    def read(self, directory: str, run: Run) -> IoResult:
        self._reads.append(HeldWork(run, "read", directory))
        return self._reads[-1].result

    def directory_op(self, directory: str, run: Run) -> IoResult:
        return self._push(directory, "name", run)

    def background(self, directory: str, run: Run) -> IoResult:
        return self._push(directory, "background", run)

    def _push(self, directory: str, kind: str, run: Run) -> IoResult:
        work = HeldWork(run, kind, directory)
        self._queues[directory, kind].append(work)
        return work.result

    def step(self) -> None:
        """Run one piece of work, if there is any."""
        heads = [queue[0] for queue in self._queues.values() if queue] + self._reads
        if not heads:
            return
        work = self._rng.choice(heads)
        if work.kind == "read":
            self._reads.remove(work)
        else:
            self._queues[work.directory, work.kind].popleft()
        work.finish()
