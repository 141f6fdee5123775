"""A run: clients work on a cluster, faults are injected one after the other, and the histories are checked.

FORMAT   The folder of a run holds the histories and logs of all clients, the logs of all nodes, and `run.json`: the seed, the
         numbers of nodes, and the log of events.
RULES    1. The clients are those of the loop in `tests.exactly_once`, non-transactional writers, and readers in groups.
         2. While a fault affects at most one node, all clients make progress. After every fault the cluster recovers and all
            clients make progress, each within a time limit.
         3. At the end there is no anomaly, and each target holds the records of its source. The check needs only the folder, so
            it can be repeated.
NOT HERE The faults (`faults.py`), what a healthy cluster is (`cluster_state.py`).
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.exactly_once.anomalies import AT_ANY_TIME
from tests.exactly_once.loop import (
    MANUAL,
    PARTITIONS,
    PROCESSORS,
    SOURCE,
    TARGET,
    check_for_anomalies,
    check_result,
    commit_first_offsets,
    commit_offset_zero,
    make_topics,
    read_all,
    start_clients,
)
from tests.exactly_once.processes import ProcessGroup, ReadProgress
from tests.faults.cluster import Cluster
from tests.faults.faults import ALONE, FAULTS, NODES, PYTHON, STEADY
from tests.support.waiting import until

TOPICS = {SOURCE: PARTITIONS, TARGET: PARTITIONS, MANUAL: 1, STEADY: PARTITIONS, PYTHON: 1}
GROUPS = {"classic-reader": "classic", "consumer-reader": "consumer"}
WRITERS = ("writer", STEADY, PYTHON)
HELD_S = 8.0
PROGRESS_WITHIN_S = 60.0
TWO_AT_A_TIME = 0.25
RUN = "run.json"
PACKAGE = "tests.faults"


def group_of(reader: str) -> str:
    """The group id of a reader."""
    return f"group-of-{reader}"


class Run:
    """A cluster, its clients and the injected faults."""

    def __init__(self, folder: Path, cluster: Cluster, seed: int, only: list[str] | None = None) -> None:
        self._folder = folder
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._faults = only or [name for name in FAULTS if NODES.get(name, 0) <= len(cluster.nodes)]
        self._summary: dict[str, Any] = {
            "seed": seed,
            "nodes": len(cluster.nodes),
            "brokers": len(cluster.brokers),
            "happened": [],
        }
        self._began_s = time.monotonic()
        self.done: Counter[str] = Counter()

    def play(self, count: int, until_s: float = float("inf")) -> None:
        """Injects `count` faults, or those that start before `until_s` and at least one, and checks the result."""
        bootstrap = self._cluster.bootstrap
        make_topics(bootstrap, TOPICS, 3)
        commit_first_offsets(bootstrap)
        for name in GROUPS:
            commit_offset_zero(bootstrap, group_of(name), STEADY, PARTITIONS)
        with ProcessGroup(bootstrap, self._folder) as processes:
            self._start_clients(processes)
            self._check_progress(processes, "at the beginning")
            for number in range(count):
                if number and time.monotonic() >= until_s:
                    break
                self._inject_faults(processes)
                check_for_anomalies(self._folder, AT_ANY_TIME)
            self._finish(processes)

    def _start_clients(self, processes: ProcessGroup) -> None:
        start_clients(processes, TOPICS)
        processes.start(f"{PACKAGE}.steady_writer", STEADY, STEADY, PARTITIONS)
        processes.start(f"{PACKAGE}.python_writer", PYTHON, PYTHON, 1)
        for name, protocol in GROUPS.items():
            processes.start(f"{PACKAGE}.group_reader", name, STEADY, group_of(name), protocol)

    # ---- what happens

    def _inject_faults(self, processes: ProcessGroup) -> None:
        names = [self._dice.choice(self._faults)]
        other = self._dice.choice(self._faults)
        if self._dice.random() < TWO_AT_A_TIME and other != names[0] and not ALONE & {other, names[0]}:
            names.append(other)
        with ExitStack() as stack:
            affected: set[int] = set()
            for name in names:
                injected = stack.enter_context(FAULTS[name](self._cluster, self._dice))
                affected |= injected.affected
                self._log_event(injected.words)
                self.done[name] += 1
            self._wait(processes, self._dice.uniform(0.2, HELD_S))
            if len(affected) <= 1:
                self._check_progress(processes, "during the fault")
        repaired_s = time.monotonic()
        self._cluster.wait_until_healthy()
        self._log_event(f"healthy {time.monotonic() - repaired_s:.1f} s after the repair")
        self._check_progress(processes, "after the repair")

    def _log_event(self, words: str) -> None:
        words = f"{time.monotonic() - self._began_s:7.1f} s: {words}"
        self._summary["happened"].append(words)
        (self._folder / RUN).write_text(json.dumps(self._summary, indent=1))
        print(words, flush=True)

    def _check_running(self, processes: ProcessGroup) -> None:
        self._cluster.check_running()
        processes.check_running()

    def _wait(self, processes: ProcessGroup, seconds: float) -> None:
        over_s = time.monotonic() + seconds

        def is_over() -> bool:
            self._check_running(processes)
            return time.monotonic() >= over_s

        until(is_over, "time passes", seconds + 60)

    def _check_progress(self, processes: ProcessGroup, when: str) -> None:
        """Every reader polls a record of each of its topics that it had not polled before."""
        readers = {"watcher": list(TOPICS), **{name: [STEADY] for name in GROUPS}}
        following = {name: ReadProgress(self._folder, name) for name in readers}
        before = {name: Counter(follows.latest_counts()) for name, follows in following.items()}
        began_s = time.monotonic()

        def stuck() -> list[str]:
            self._check_running(processes)
            return [
                f"{name} in {topic}"
                for name, topics in readers.items()
                for seen in [following[name].latest_counts()]
                for topic in topics
                if seen[topic] <= before[name][topic]
            ]

        try:
            until(lambda: not stuck(), f"all clients make progress {when}", PROGRESS_WITHIN_S, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; no progress of {', '.join(stuck())}") from None
        self._log_event(f"all clients made progress {when}, after {time.monotonic() - began_s:.1f} s")

    # ---- the end

    def _finish(self, processes: ProcessGroup) -> None:
        processes.stop(*WRITERS)
        found = read_all(processes, "last-of-source", {SOURCE: PARTITIONS})
        progress = ReadProgress(self._folder, "watcher")
        wanted = {TARGET: sum(map(len, found.values())), MANUAL: len(found[SOURCE, 0])}

        def is_processed() -> bool:
            self._check_running(processes)
            seen = progress.latest_counts()
            return all(seen[topic] >= count for topic, count in wanted.items())

        until(is_processed, f"{wanted} records are processed", 2 * PROGRESS_WITHIN_S, 0.1)
        self._log_event("all records are processed")
        self.done.update(processes.counts())
        processes.stop(*PROCESSORS, "watcher", *GROUPS)
        self.done["records"] = sum(map(len, read_all(processes, "last", TOPICS).values()))
        self._log_event("all records are read")
        check_result(self._folder)


@contextmanager
def nodes_logged_to(folder: Path, cluster: Cluster) -> Iterator[None]:
    """Copies the nodes' logs to the folder at the end, also after a failure."""
    try:
        yield
    finally:
        cluster.keep_logs(folder)
