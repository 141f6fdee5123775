"""Records synced before they are acknowledged, compared with Apache Kafka: make bench ARGS="durable"

One producer (librdkafka, acks=all, five requests in flight, no linger) keeps four records of 100 bytes in flight for each
of 1, 10, 100 and 1,000 partitions, at most 2,000, of a new topic with flush.messages=1. Both brokers run all the time; each
load runs on one broker and then on the other, in alternating order.
"""

from __future__ import annotations

from tests.benchmark.load.durable import acknowledged
from tests.benchmark.load.running_broker import in_turn, running
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, options, show_progress

SECONDS, QUICK_SECONDS = 10.0, 5.0
AIMS = {
    1: {"records/s": 1.0},
    10: {"records/s": 2.0},
    100: {"records/s": 3.0, "p99 ms": 0.1},
    1000: {"records/s": 10.0, "p99 ms": 0.1},
}
"""By number of partitions, as factors of Apache Kafka's figures."""


def measure(results: Results, wanted: Wanted) -> None:
    """All numbers of partitions, round after round."""
    seconds = QUICK_SECONDS if wanted.quick else SECONDS
    with running(wanted) as brokers:
        for turn in range(wanted.rounds):
            for partitions, aims in AIMS.items():
                load = f"flush.messages=1, {partitions:,} partition{'s' if partitions > 1 else ''}"
                show_progress(f"round {turn + 1} of {wanted.rounds}: {load}")
                for broker in in_turn(brokers, turn) if wanted.wants(load) else ():
                    outcome = acknowledged(broker, f"durable-{partitions}-{turn}", partitions, seconds)
                    results.add(load, broker.name, outcome, aims)


def main() -> int:
    return compare(options("durable", __doc__, quick_rounds=1), measure)
