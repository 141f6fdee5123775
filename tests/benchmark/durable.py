"""Records synced before they are acknowledged, compared with Apache Kafka: make bench ARGS="durable"

One producer (librdkafka, acks=all, five requests in flight, no linger) keeps four records of 100 bytes in flight for each
of 1, 10, 100 and 1,000 partitions, at most 2,000, of a new topic with flush.messages=1. Both brokers run all the time; each
load runs on one broker and then on the other, in alternating order.

For 100 partitions and more two loads follow: the same without flush.messages, which is the rate that flushes of no cost would
have; and requests with a record of 1 KiB for each partition, five in flight, with and without flush.messages. librdkafka sends
requests for one partition, so that a group commit has few files; in those it has all. `flushes` measures the disk alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from tests.benchmark.load.durable import acknowledged, record_to_each
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.running_broker import RunningBroker, in_turn, running
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import NO_AIMS, Results
from tests.benchmark.report.terminal import Wanted, options, show_progress

MANY = 100
SECONDS, QUICK_SECONDS = 10.0, 5.0
AIMS = {
    1: {"records/s": 1.0},
    10: {"records/s": 2.0},
    100: {"records/s": 3.0, "p99 ms": 0.1},
    1000: {"records/s": 10.0, "p99 ms": 0.1},
}
"""By number of partitions, as factors of Apache Kafka's figures."""
_FLUSHED = {"flush_messages": 1}


class Load(NamedTuple):
    name: str
    run: Callable[[RunningBroker, str], Outcome]
    """On a broker, with a new topic of this name."""
    aims: Mapping[str, float]


def measure(results: Results, wanted: Wanted) -> None:
    """All loads, round after round."""
    with running(wanted) as brokers:
        for turn in range(wanted.rounds):
            for load in loads(QUICK_SECONDS if wanted.quick else SECONDS):
                show_progress(f"round {turn + 1} of {wanted.rounds}: {load.name}")
                for broker in in_turn(brokers, turn) if wanted.wants(load.name) else ():
                    outcome = load.run(broker, f"durable-{time.monotonic_ns()}")
                    results.add(load.name, broker.name, outcome, load.aims)


def loads(seconds: float) -> list[Load]:
    """All loads in order."""
    made = []
    for partitions, aims in AIMS.items():
        count = f"{partitions:,} partition{'s' if partitions > 1 else ''}"
        records = partial(acknowledged, partitions=partitions, seconds=seconds)
        made.append(Load(f"flush.messages=1, {count}", partial(records, **_FLUSHED), aims))
        if partitions >= MANY:
            each = partial(record_to_each, partitions=partitions)
            made += [
                Load(f"without flush.messages, {count}", records, NO_AIMS),
                Load(f"flush.messages=1, requests for {count}", partial(each, **_FLUSHED), NO_AIMS),
                Load(f"without flush.messages, requests for {count}", each, NO_AIMS),
            ]
    return made


def main() -> int:
    return compare(options("durable", __doc__, quick_rounds=1), measure)
