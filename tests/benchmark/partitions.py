"""What 1,000 and 5,000 partitions cost, beside Apache Kafka: make bench ARGS="partitions [OPTION]..."

    --rounds N           so many restarts of each kind; 3 unless said
    --width N            only so many partitions; may be said several times
    --only NAME          only barnabas, or only kafka
    --add                to the figures of the last such run with other --width and --only: a long run in pieces
    --quick              a tenth of the partitions, to see that it runs
    --alone              Barnabas alone
    --docs               the plot into docs/figures too, and the table in Markdown on the terminal

One node runs at a time, the first one changing from round to round; each number of partitions begins with new nodes. Every
partition holds a few batches, one in ten of them in as many segments. What a start leaves for the first use is a figure
too: the first record written to each partition after a clean restart, the first Fetch of each after a SIGKILL. A record and
a batch of each partition were not synced by anybody then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

import psutil

from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import Node, Site, at_rest, nodes, start
from tests.benchmark.load.startup import FULL as PATIENCE
from tests.benchmark.report.publish import FOLDER, measured
from tests.benchmark.report.rows import OURS, THEIRS, Results
from tests.benchmark.report.terminal import options, say, wishes
from tests.support.loading import fetch_request
from tests.support.raw_client import RawClient

WIDTHS, QUICK_WIDTHS = (1000, 5000), (100, 500)
BATCH_BYTES = 4 << 10
BATCHES = 4
_ANSWER_LIMIT_S = 120.0
_TOPIC, _SEGMENTED = "wide", "segmented"
_SEGMENTED_SHARE = 10
_SEGMENT_MS = 1000
_NAMES = {"barnabas": OURS, "kafka": THEIRS}
_FETCH_VERSION = 11
_NO_ID = bytes(16)
START_AIMS = {"s": 0.1}
MEMORY_AIMS = {"memory MiB": 0.2}
TOUCH_AIMS = {"s": 1.0}


class Pair:
    """The nodes, with two topics that have so many partitions together."""

    def __init__(self, made: Mapping[str, Node], results: Results, width: int) -> None:
        self._nodes = made
        self._results = results
        self._width = width
        segmented = width // _SEGMENTED_SHARE
        self._topics = {_TOPIC: width - segmented, _SEGMENTED: segmented}

    def make(self) -> None:
        """Create the topics, write to each partition for the first time, fill all."""
        for name, node in self._nodes.items():
            site, _ = start(name, node)
            with RawClient(site.bootstrap, _ANSWER_LIMIT_S) as admin:
                with Meter(site.pid) as meter:
                    raw.create_topic(admin, _TOPIC, self._topics[_TOPIC], **SMALL_INDEXES)
                    settings = {**SMALL_INDEXES, "segment.ms": _SEGMENT_MS}
                    raw.create_topic(admin, _SEGMENTED, self._topics[_SEGMENTED], **settings)
                self._add("creation and a first record in each", name, _spent(meter), TOUCH_AIMS)
            for batch in range(BATCHES):
                self._append_to_all(site, 2 * _SEGMENT_MS * batch)
            node.stop()

    def restart_clean(self, turn: int) -> None:
        """Start after a clean stop, rest, write."""
        for name, node in self._in_turn(turn):
            site, outcome = start(name, node)
            self._add("clean restart", name, outcome, START_AIMS)
            self._add("at rest after it", name, at_rest([site], *PATIENCE)[name], MEMORY_AIMS)
            self._add("then a record to each", name, self._write_to_all(site), TOUCH_AIMS)
            self._add("at rest after that", name, _held(site, at_rest([site], *PATIENCE)[name]), MEMORY_AIMS)
            node.stop()

    def restart_killed(self, turn: int) -> None:
        for name, node in self._in_turn(turn):
            site, _ = start(name, node)
            self._write_to_all(site)
            self._append_to_all(site, 0)
            node.kill()
            site, outcome = start(name, node)
            self._add("restart after SIGKILL", name, outcome, START_AIMS)
            self._add("then a Fetch of each", name, self._read_of_all(site), TOUCH_AIMS)
            node.stop()

    def _add(self, what: str, name: str, outcome: Outcome, aims: dict[str, float]) -> None:
        self._results.add(f"{self._width:,} partitions: {what}", name, outcome, aims)

    def _write_to_all(self, site: Site) -> Outcome:
        """One record to every partition, in one request for each topic."""
        with RawClient(site.bootstrap, _ANSWER_LIMIT_S) as client, Meter(site.pid) as meter:
            for topic, partitions in self._topics.items():
                raw.touch(client, topic, partitions)
        return _spent(meter)

    def _append_to_all(self, site: Site, ahead_ms: int) -> None:
        """A batch to every partition, whose time is so far in the future."""
        batch = raw.batch(BATCH_BYTES // 1024, 1024, ahead_ms)
        for topic, partitions in self._topics.items():
            raw.append(site.bootstrap, topic, batch, partitions)

    def _read_of_all(self, site: Site) -> Outcome:
        positions = {
            (topic, _NO_ID, index): 0 for topic, partitions in self._topics.items() for index in range(partitions)
        }
        request = fetch_request(_FETCH_VERSION, positions, max_bytes=BATCH_BYTES)
        request.max_bytes = BATCH_BYTES * self._width
        with RawClient(site.bootstrap, _ANSWER_LIMIT_S) as client, Meter(site.pid) as meter:
            answer = client.ask(request, _FETCH_VERSION)
        found = [bool(data.records) for topic in answer.responses for data in topic.partitions]
        assert found == [True] * self._width, "every partition has records"
        return _spent(meter)

    def _in_turn(self, turn: int) -> list[tuple[str, Node]]:
        return list(self._nodes.items())[:: 1 if turn % 2 else -1]


def _spent(meter: Meter) -> Outcome:
    return Outcome({"s": meter.wall_s, "CPU s": meter.cpu_s})


def _held(site: Site, rest: Outcome) -> Outcome:
    return Outcome({**rest.figures, "descriptors": float(psutil.Process(site.pid).num_fds())})


def main() -> int:
    parser = options("partitions", __doc__)
    parser.add_argument("--width", type=int, action="append", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=_NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--add", action="store_true", help=argparse.SUPPRESS)
    wanted = wishes(parser)
    is_whole = not (wanted.alone or wanted.width or wanted.only)
    name = "partitions-quick" if wanted.quick else "partitions" if is_whole else "partitions-part"
    results = Results.read(FOLDER / f"{name}.json") if wanted.add else Results(name, {"rounds": wanted.rounds})
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


def measure(results: Results, wanted: argparse.Namespace) -> None:
    for width in wanted.width or (QUICK_WIDTHS if wanted.quick else WIDTHS):
        with nodes(alone=wanted.alone or wanted.only == "barnabas") as made:
            pair = Pair(_chosen(made, wanted.only), results, width)
            say(f"{width} partitions")
            pair.make()
            repeat(pair.restart_clean, wanted.rounds, f"clean restart with {width} partitions")
            repeat(pair.restart_killed, wanted.rounds, f"restart after SIGKILL with {width} partitions")


def _chosen(made: Mapping[str, Node], only: str | None) -> Mapping[str, Node]:
    return made if only is None else {_NAMES[only]: made[_NAMES[only]]}


def repeat(restart: Callable[[int], None], rounds: int, what: str) -> None:
    for turn in range(1, rounds + 1):
        say(f"round {turn} of {rounds}: {what}")
        restart(turn)


if __name__ == "__main__":
    sys.exit(main())
