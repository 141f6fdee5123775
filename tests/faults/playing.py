"""Clients at work on a cluster to which one fault happens after the other; their histories, and what is looked for in them.

FORMAT   The folder of a run holds the histories and logs of all clients, the logs of all nodes, and `run.json`: the seed, the
         kind and number of nodes, and what happened.
RULES    1. What the loop of `tests.exactly_once` does goes on all the time: transactions, of which some are aborted, are
            written, carried on by a group and by hand, and read. Beside them others write without transactions, and read in
            groups.
         2. While a fault harms one node at most, everything gets on. After it is mended the cluster becomes whole, and then
            everything gets on, each within a bounded time.
         3. In the end there is no anomaly, and each target holds what its source holds. This is looked for in the folder
            alone, so it can be looked for again.
NOT HERE Which faults there are (`faults.py`), when a cluster is whole (`views.py`).
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.exactly_once.anomalies import AT_ANY_TIME, Partition
from tests.exactly_once.carrier import transformed
from tests.exactly_once.history import read_histories
from tests.exactly_once.lives import Following, Lives
from tests.exactly_once.loop import (
    BY_HAND,
    CARRIERS,
    GROUP,
    PARTITIONS,
    SOURCE,
    TARGET,
    begin_at_the_beginning,
    compare,
    look_for_anomalies,
    make_topics,
    words_of,
)
from tests.faults.cluster import Cluster
from tests.faults.faults import ALONE, FAULTS, NODES, PYTHON, STEADY
from tests.support.waiting import until

TOPICS = {SOURCE: PARTITIONS, TARGET: PARTITIONS, BY_HAND: 1, STEADY: PARTITIONS, PYTHON: 1}
GROUPS = {"classic-reader": "classic", "consumer-reader": "consumer"}
WRITERS = ("writer", STEADY, PYTHON)
HELD_S = 8.0
GETS_ON_WITHIN_S = 60.0
TWO_AT_A_TIME = 0.25
RUN = "run.json"
HERE = "tests.faults"


def group_of(reader: str) -> str:
    """The group of a program."""
    return f"group-of-{reader}"


class Run:
    """A cluster, its clients, and what happens to it."""

    def __init__(self, folder: Path, cluster: Cluster, seed: int, only: list[str] | None = None) -> None:
        self._folder = folder
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._faults = only or [name for name in FAULTS if NODES.get(name, 0) <= len(cluster.nodes)]
        self._told: dict[str, Any] = {
            "seed": seed,
            "nodes": len(cluster.nodes),
            "brokers": len(cluster.brokers),
            "happened": [],
        }
        self._began_s = time.monotonic()
        self.done: Counter[str] = Counter()

    def play(self, count: int, until_s: float = float("inf")) -> None:
        """So many faults, or those that begin before it is so late, and one at least; then the end."""
        bootstrap = self._cluster.bootstrap
        make_topics(bootstrap, TOPICS, 3)
        begin_at_the_beginning(bootstrap, GROUP, SOURCE, PARTITIONS)
        begin_at_the_beginning(bootstrap, CARRIERS[2], SOURCE, 1)
        for name in GROUPS:
            begin_at_the_beginning(bootstrap, group_of(name), STEADY, PARTITIONS)
        with Lives(bootstrap, self._folder) as lives:
            self._employ(lives)
            self._see_progress(lives, "at the beginning")
            for number in range(count):
                if number and time.monotonic() >= until_s:
                    break
                self._let_something_happen(lives)
                look_for_anomalies(self._folder, AT_ANY_TIME)
            self._end(lives)

    def _employ(self, lives: Lives) -> None:
        lives.begin("writer", "writer", SOURCE, PARTITIONS)
        lives.begin(f"{HERE}.steady_writer", STEADY, STEADY, PARTITIONS)
        lives.begin(f"{HERE}.python_writer", PYTHON, PYTHON, 1)
        lives.begin("reader", "watcher", *words_of(TOPICS))
        for name in CARRIERS[:2]:
            lives.begin("carrier", name, SOURCE, TARGET, GROUP)
        lives.begin("carrier_by_hand", CARRIERS[2], SOURCE, BY_HAND)
        for name, protocol in GROUPS.items():
            lives.begin(f"{HERE}.group_reader", name, STEADY, group_of(name), protocol)

    # ---- what happens

    def _let_something_happen(self, lives: Lives) -> None:
        names = [self._dice.choice(self._faults)]
        other = self._dice.choice(self._faults)
        if self._dice.random() < TWO_AT_A_TIME and other != names[0] and not ALONE & {other, names[0]}:
            names.append(other)
        with ExitStack() as all_of_it:
            harmed: set[int] = set()
            for name in names:
                harm = all_of_it.enter_context(FAULTS[name](self._cluster, self._dice))
                harmed |= harm.harmed
                self._tell(harm.words)
                self.done[name] += 1
            self._wait(lives, self._dice.uniform(0.2, HELD_S))
            if len(harmed) <= 1:
                self._see_progress(lives, "while it lasts")
        mended_s = time.monotonic()
        self._cluster.wait_until_whole()
        self._tell(f"whole {time.monotonic() - mended_s:.1f} s after it was mended")
        self._see_progress(lives, "after it was mended")

    def _tell(self, words: str) -> None:
        words = f"{time.monotonic() - self._began_s:7.1f} s: {words}"
        self._told["happened"].append(words)
        (self._folder / RUN).write_text(json.dumps(self._told, indent=1))
        print(words, flush=True)

    def _look(self, lives: Lives) -> None:
        self._cluster.look()
        lives.look()

    def _wait(self, lives: Lives, seconds: float) -> None:
        over_s = time.monotonic() + seconds

        def is_over() -> bool:
            self._look(lives)
            return time.monotonic() >= over_s

        until(is_over, "time passes", seconds + 60)

    def _see_progress(self, lives: Lives, when: str) -> None:
        """Every reader gets something new that was not written before."""
        readers = {"watcher": list(TOPICS), **{name: [STEADY] for name in GROUPS}}
        following = {name: Following(self._folder, name) for name in readers}
        before = {name: Counter(follows.of_its_latest_life()) for name, follows in following.items()}
        began_s = time.monotonic()

        def stuck() -> list[str]:
            self._look(lives)
            return [
                f"{name} in {topic}"
                for name, topics in readers.items()
                for seen in [following[name].of_its_latest_life()]
                for topic in topics
                if seen[topic] <= before[name][topic]
            ]

        try:
            until(lambda: not stuck(), f"everything gets on {when}", GETS_ON_WITHIN_S, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; nothing comes to {', '.join(stuck())}") from None
        self._tell(f"all get on {when}, after {time.monotonic() - began_s:.1f} s")

    # ---- the end

    def _end(self, lives: Lives) -> None:
        lives.end(*WRITERS)
        lives.see_through("reader", "last-of-source", "to-the-end", *words_of({SOURCE: PARTITIONS}))
        there = _read_by(self._folder, "last-of-source")
        watched = Following(self._folder, "watcher")
        wanted = {TARGET: sum(map(len, there.values())), BY_HAND: len(there[SOURCE, 0])}

        def is_carried() -> bool:
            self._look(lives)
            seen = watched.of_its_latest_life()
            return all(seen[topic] >= count for topic, count in wanted.items())

        until(is_carried, f"{wanted} records are carried", 2 * GETS_ON_WITHIN_S, 0.1)
        self._tell("everything is carried")
        self.done.update(lives.told())
        lives.end(*CARRIERS, "watcher", *GROUPS)
        lives.see_through("reader", "last", "to-the-end", *words_of(TOPICS))
        self.done["records"] = sum(map(len, _read_by(self._folder, "last").values()))
        self._tell("everything is read")
        check(self._folder)


@contextmanager
def kept(folder: Path, cluster: Cluster) -> Iterator[None]:
    """The nodes' logs are in the folder, whatever happens."""
    try:
        yield
    finally:
        cluster.keep_logs(folder)


def _read_by(folder: Path, name: str) -> dict[Partition, list[str]]:
    """What the last life of a reader was given, by partition."""
    found: dict[str, dict[Partition, list[str]]] = defaultdict(lambda: defaultdict(list))
    for event in read_histories(folder):
        if event.what == "polled" and event.who.rpartition("-")[0] == name:
            found[event.who][event.where].append(event.value)
    return found[max(found, key=lambda who: int(who.rpartition("-")[2]))] if found else defaultdict(list)


def check(folder: Path) -> None:
    """Look for whatever is wrong in what a run has left."""
    look_for_anomalies(folder)
    there = _read_by(folder, "last")
    for partition in range(PARTITIONS):
        carried = [transformed(value) for value in there[SOURCE, partition]]
        compare(f"{TARGET}-{partition}", there[TARGET, partition], carried)
        if partition == 0:
            compare(f"{BY_HAND}-0", there[BY_HAND, 0], carried)
