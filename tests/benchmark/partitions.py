"""Restarts and memory with 1,000 and 5,000 partitions, beside Apache Kafka: make bench ARGS="partitions [OPTION]..."

    --rounds N           so many restarts of each kind; 3 unless said
    --quick              a tenth of the partitions, to see that it runs
    --alone              Barnabas alone
    --docs               the plot into docs/figures too, and the table in Markdown on the terminal

One node runs at a time, the first one changing from round to round. Every partition holds a few batches and gets one
more after every start, whose time is a figure too: so a start that leaves work for the first use does not look better
than it is. Those batches are what a SIGKILL leaves unflushed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.fresh import FULL as PATIENCE
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.site import Node, Site, at_rest, nodes, start
from tests.benchmark.report.publish import publish
from tests.benchmark.report.rows import NO_AIMS, Results
from tests.benchmark.report.terminal import options, say, wishes
from tests.support.raw_client import RawClient

WIDTHS, QUICK_WIDTHS = (1000, 4000), (100, 400)
"""Partitions of the topics, made one after the other."""
BATCH_BYTES = 4 << 10
BATCHES = 4
_ANSWER_LIMIT_S = 120.0
START_AIMS = {"s": 0.1}
MEMORY_AIMS = {"memory MiB": 0.2}


class Pair:
    """Both nodes and the topics that they have got."""

    def __init__(self, made: dict[str, Node], results: Results) -> None:
        self._nodes = made
        self._results = results
        self._widths: list[int] = []

    @property
    def _size(self) -> str:
        return f"{sum(self._widths):,} partitions"

    def widen(self, width: int) -> None:
        """Add a topic with something in every partition."""
        for name, node in self._nodes.items():
            site, _ = start(name, node)
            with RawClient(site.bootstrap, _ANSWER_LIMIT_S) as admin:
                raw.create_topic(admin, _topic(width), width, **SMALL_INDEXES)
            raw.fill(site.bootstrap, _topic(width), BATCH_BYTES, BATCHES * BATCH_BYTES * width, width)
            node.stop()
        self._widths.append(width)

    def restart_clean(self, turn: int) -> None:
        """Start after a clean stop, rest, write."""
        for name, node in self._in_turn(turn):
            site, outcome = start(name, node)
            self._results.add(f"clean restart, {self._size}", name, outcome, START_AIMS)
            rest = at_rest([site], *PATIENCE)[name]
            aims = MEMORY_AIMS if len(self._widths) > 1 else NO_AIMS
            self._results.add(f"at rest after it, {self._size}", name, rest, aims)
            self._results.add(f"then a record to each of {self._size}", name, self._write_to_all(site))
            node.stop()

    def restart_killed(self, turn: int) -> None:
        """Write, kill, start, write."""
        for name, node in self._in_turn(turn):
            self._write_to_all(start(name, node)[0])
            node.kill()
            site, outcome = start(name, node)
            self._results.add(f"restart after SIGKILL, {self._size}", name, outcome, START_AIMS)
            written = self._write_to_all(site)
            self._results.add(f"then, after SIGKILL, a record to each of {self._size}", name, written)
            node.stop()

    def _write_to_all(self, site: Site) -> Outcome:
        """One record to every partition, a request for each topic."""
        started = time.monotonic()
        with RawClient(site.bootstrap, _ANSWER_LIMIT_S) as client:
            for width in self._widths:
                raw.touch(client, _topic(width), width)
        return Outcome({"s": time.monotonic() - started})

    def _in_turn(self, turn: int) -> list[tuple[str, Node]]:
        return list(self._nodes.items())[:: 1 if turn % 2 else -1]


def _topic(width: int) -> str:
    return f"wide-{width}"


def main() -> int:
    wanted = wishes(options("partitions", __doc__))
    part = "-quick" if wanted.quick else "-part" if wanted.alone else ""
    results = Results(f"partitions{part}", {"rounds": wanted.rounds})
    started = time.monotonic()
    with nodes(alone=wanted.alone) as made:
        pair = Pair(made, results)
        for width in QUICK_WIDTHS if wanted.quick else WIDTHS:
            say(f"a topic of {width} partitions")
            pair.widen(width)
            repeat(pair.restart_clean, wanted.rounds, f"clean restart with {width} more partitions")
        repeat(pair.restart_killed, wanted.rounds, "restart after SIGKILL")
    say("")
    results.settings["seconds"] = round(time.monotonic() - started, 1)
    return publish(results, docs=wanted.docs)


def repeat(restart: Callable[[int], None], rounds: int, what: str) -> None:
    for turn in range(1, rounds + 1):
        say(f"round {turn} of {rounds}: {what}")
        restart(turn)


if __name__ == "__main__":
    sys.exit(main())
