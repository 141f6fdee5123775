"""A key index on the partitions of a ReplicaHarness: its worker runs one job at a time, when the test says so."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from replication.completion import Completion
from replication.partition.key_indexer import KeyIndexer
from replication.partition.key_search import KeySearch, PartitionAnswer, SearchQuery
from storage.io.disk import Disk
from storage.keyindex.index_jobs import IndexJobs, Job
from tests.support.replica_harness import ReplicaHarness

ALL_TIMES = (-(1 << 62), 1 << 62)


class QueuedWorker:
    """Runs jobs as another process would: they are pickled, and so are their results."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.jobs = IndexJobs(disk or Disk())
        self.queue: deque[tuple[bytes, Completion[Any]]] = deque()
        self.submitted: list[str] = []

    def submit(self, job: Job) -> Completion[Any]:
        done: Completion[Any] = Completion()
        self.submitted.append(type(job).__name__)
        self.queue.append((pickle.dumps(job), done))
        return done

    def run_job(self) -> bool:
        """Run the next job; False if there is none."""
        if not self.queue:
            return False
        data, done = self.queue.popleft()
        done.complete(pickle.loads(pickle.dumps(self.jobs.run(pickle.loads(data)))))
        return True


class KeyIndexRig:
    """Indexer and searches of a harness."""

    def __init__(self, harness: ReplicaHarness) -> None:
        self.harness = harness
        self.restart()

    def restart(self) -> None:
        """Lose everything but the files."""
        self.builder, self.searcher = QueuedWorker(), QueuedWorker()
        self.indexer = KeyIndexer(self.harness.replicas, self.builder)
        self.searches = KeySearch(self.harness.replicas, self.indexer, self.searcher)

    def build(self, checks: int = 3) -> None:
        """Index everything."""
        for _ in range(checks):
            self.indexer.check()
            while self.builder.run_job():
                pass

    def search(
        self, value: bytes, field: str = "key", times: tuple[int, int] = ALL_TIMES, limit: int = 100, index: int = 0
    ) -> PartitionAnswer:
        """The answer of a partition of topic `t`."""
        done = self.searches.search("t", [index], SearchQuery(field, value, *times, limit))
        while not done.is_done:
            assert self.searcher.run_job(), "the search waits for nothing"
        answer = done.result()[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
