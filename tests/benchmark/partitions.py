"""The cost of 1,000 and 5,000 partitions, compared with Apache Kafka: make bench ARGS="partitions"

One node runs at a time, in alternating order; each number of partitions starts with new nodes. Every partition holds a few
batches, one in ten of them in as many segments. Work that a start defers to the first use is measured too: the first record
written to each partition after a clean restart, the first Fetch of each after a SIGKILL, when a record and a batch of each
partition were not synced. What a start defers is judged together with the start. --only barnabas or --only kafka selects a
broker, --add with other --width and --only continues a long run; --quick has a tenth of the partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from tests.benchmark.load import raw
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import Node, RunningBroker, at_rest, in_turn, nodes, start
from tests.benchmark.load.startup import FULL as REST_TIMES
from tests.benchmark.report.publish import FOLDER, measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import (
    Wanted,
    options,
    parse_arguments,
    results_name,
    results_settings,
    show_progress,
)
from tests.support.loading import fetch_request
from tests.support.raw_client import RawClient

WIDTHS, QUICK_WIDTHS = (1000, 5000), (100, 500)
BATCH_BYTES = 4 << 10
BATCHES = 4
_ANSWER_LIMIT_S = 120.0
_TOPIC, _SEGMENTED = "wide", "segmented"
_TOPIC_PARTITIONS = 5_000
"""Apache Kafka creates at most 10,000 in one request, less the records for topic and settings; a Fetch has at most 55 MB."""
_SEGMENTED_SHARE = 10
_SEGMENT_MS = 1000
_FETCH_VERSION = 11
_NO_ID = bytes(16)
START_AIMS = {"s": 0.1}
MEMORY_AIMS = {"memory MiB": 0.2}
TOUCH_AIMS = {"s": 1.0}


class PartitionRestarts:
    """The nodes, with two topics that have this number of partitions together."""

    def __init__(
        self, made: Mapping[str, Node], results: Results, width: int, start_aims: Mapping[str, float] = START_AIMS
    ) -> None:
        """`start_aims`: factors of Apache Kafka's figures, for starts."""
        self._nodes = made
        self._results = results
        self._width = width
        self._start_aims = start_aims
        segmented = width // _SEGMENTED_SHARE
        self._settings: dict[str, dict[str, Any]] = {_SEGMENTED: {"segment.ms": _SEGMENT_MS}}
        self._topics = {_SEGMENTED: segmented}
        for first in range(0, width - segmented, _TOPIC_PARTITIONS):
            self._topics[f"{_TOPIC}{first}"] = min(_TOPIC_PARTITIONS, width - segmented - first)

    def fill(self) -> None:
        """Creates the topics, writes to each partition for the first time, fills all."""
        for name, node in self._nodes.items():
            broker, _ = start(name, node)
            with RawClient(broker.bootstrap, _ANSWER_LIMIT_S) as admin:
                with Meter(broker.pid) as meter:
                    for topic, partitions in self._topics.items():
                        raw.create_topic(admin, topic, partitions, **SMALL_INDEXES, **self._settings.get(topic, {}))
                self._add("creation and a first record in each", name, _time_and_cpu(meter), TOUCH_AIMS)
            for batch in range(BATCHES):
                self._append_to_all(broker, 2 * _SEGMENT_MS * batch)
            node.stop()

    def restart_clean(self, turn: int) -> None:
        """Start after a clean stop, rest, write."""
        for name, node in in_turn(self._nodes.items(), turn):
            broker, outcome = start(name, node)
            self._add("clean restart", name, outcome, self._start_aims)
            self._add("at rest after it", name, at_rest([broker], *REST_TIMES)[name], MEMORY_AIMS)
            written = self._write_to_all(broker)
            self._add("then a record to each", name, written, {})
            self._add("clean restart and a record to each", name, _sum(outcome, written), START_AIMS)
            self._add(
                "at rest after that", name, _with_descriptors(broker, at_rest([broker], *REST_TIMES)[name]), MEMORY_AIMS
            )
            node.stop()

    def restart_killed(self, turn: int) -> None:
        for name, node in in_turn(self._nodes.items(), turn):
            broker, _ = start(name, node)
            self._write_to_all(broker)
            self._append_to_all(broker, 0)
            node.kill()
            broker, outcome = start(name, node)
            self._add("restart after SIGKILL", name, outcome, self._start_aims)
            read = self._read_of_all(broker)
            self._add("then a Fetch of each", name, read, {})
            self._add("restart after SIGKILL and a Fetch of each", name, _sum(outcome, read), START_AIMS)
            node.stop()

    def _add(self, what: str, name: str, outcome: Outcome, aims: Mapping[str, float]) -> None:
        self._results.add(f"{self._width:,} partitions: {what}", name, outcome, aims)

    def _write_to_all(self, broker: RunningBroker) -> Outcome:
        """One record to every partition, in one request for each topic."""
        with RawClient(broker.bootstrap, _ANSWER_LIMIT_S) as client, Meter(broker.pid) as meter:
            for topic, partitions in self._topics.items():
                raw.touch(client, topic, partitions)
        return _time_and_cpu(meter)

    def _append_to_all(self, broker: RunningBroker, ahead_ms: int) -> None:
        """A batch to every partition, with a timestamp this far in the future."""
        batch = raw.batch(BATCH_BYTES // 1024, 1024, ahead_ms)
        for topic, partitions in self._topics.items():
            raw.append(broker.bootstrap, topic, batch, partitions)

    def _read_of_all(self, broker: RunningBroker) -> Outcome:
        """A batch of every partition; those left out of a response, for the limit of open files, are requested again."""
        with RawClient(broker.bootstrap, _ANSWER_LIMIT_S) as client, Meter(broker.pid) as meter:
            for topic, partitions in self._topics.items():
                positions = {(topic, _NO_ID, index): 0 for index in range(partitions)}
                while positions:
                    request = fetch_request(_FETCH_VERSION, positions, max_bytes=BATCH_BYTES)
                    request.max_bytes = BATCH_BYTES * len(positions)
                    (answer,) = client.ask(request, _FETCH_VERSION).responses
                    found = [data.partition_index for data in answer.partitions if data.records]
                    assert found, f"{len(positions)} partitions of {topic} have no records"
                    for index in found:
                        del positions[topic, _NO_ID, index]
        return _time_and_cpu(meter)


def _time_and_cpu(meter: Meter) -> Outcome:
    return Outcome({"s": meter.wall_s, "CPU s": meter.cpu_s})


def _sum(start_up: Outcome, first_use: Outcome) -> Outcome:
    """The figures of a start and of the work that it deferred, together."""
    return Outcome({figure: start_up.figures[figure] + value for figure, value in first_use.figures.items()})


def _with_descriptors(broker: RunningBroker, rest: Outcome) -> Outcome:
    return Outcome({**rest.figures, "descriptors": float(psutil.Process(broker.pid).num_fds())})


def main() -> int:
    parser = options("partitions", __doc__)
    width, add = "only this number of partitions; may be repeated", "add to the results of the last such run"
    parser.add_argument("--width", type=int, action="append", default=[], help=width)
    parser.add_argument("--add", action="store_true", help=add)
    wanted = parse_arguments(parser)
    name = results_name("partitions", wanted, is_part=bool(wanted.width))
    settings = results_settings(wanted)
    results = Results.read(FOLDER / f"{name}.json") if wanted.add else Results(name, settings)
    if (before := results.settings.get("interpreter")) != settings["interpreter"]:
        parser.error(f"--add: the last such run was measured on {before}")
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


def measure(results: Results, wanted: Wanted) -> None:
    for width in wanted.width or (QUICK_WIDTHS if wanted.quick else WIDTHS):
        with nodes(wanted) as made:
            chosen = {name: node for name, node in made.items() if wanted.wants(name)}
            restarts = PartitionRestarts(chosen, results, width)
            show_progress(f"{width} partitions")
            restarts.fill()
            for restart in (restarts.restart_clean, restarts.restart_killed):
                for turn in range(1, wanted.rounds + 1):
                    show_progress(f"round {turn} of {wanted.rounds}: {restart.__name__} with {width} partitions")
                    restart(turn)
