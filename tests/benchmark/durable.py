"""Records synced before they are acknowledged, compared with Apache Kafka: make bench ARGS="durable [OPTION]..."

    --rounds N           number of rounds; 3 by default
    --quick              one round of 5 seconds each instead of 10
    --alone              Barnabas only
    --docs               the plot into docs/figures too, and the table in Markdown on the terminal

One producer (librdkafka, acks=all, five requests in flight, no linger) keeps four records of 100 bytes in flight for each
of 1, 10, 100 and 1,000 partitions, at most 2,000, of a new topic with flush.messages=1. Both brokers run all the time; each
load runs on one broker and then on the other, in alternating order.
"""

from __future__ import annotations

import argparse
import sys

from tests.benchmark.load.durable import acknowledged
from tests.benchmark.load.running_broker import running
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import options, parse_arguments, show_progress

SECONDS, QUICK_SECONDS = 10.0, 5.0
AIMS = {
    1: {"records/s": 1.0},
    10: {"records/s": 2.0},
    100: {"records/s": 3.0, "p99 ms": 0.1},
    1000: {"records/s": 10.0, "p99 ms": 0.1},
}
"""By number of partitions, as factors of Apache Kafka's figures."""


def main() -> int:
    wanted = parse_arguments(options("durable", __doc__))
    part = "-quick" if wanted.quick else "-part" if wanted.alone else ""
    results = Results(f"durable{part}", {"rounds": 1 if wanted.quick else wanted.rounds})
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


def measure(results: Results, wanted: argparse.Namespace) -> None:
    """All numbers of partitions, round after round."""
    rounds, seconds = results.settings["rounds"], QUICK_SECONDS if wanted.quick else SECONDS
    with running(alone=wanted.alone) as brokers:
        for turn in range(rounds):
            for partitions, aims in AIMS.items():
                show_progress(f"round {turn + 1} of {rounds}: {partitions} partitions")
                for broker in brokers if turn % 2 else reversed(brokers):
                    outcome = acknowledged(broker, f"durable-{partitions}-{turn}", partitions, seconds)
                    load = f"flush.messages=1, {partitions:,} partition{'s' if partitions > 1 else ''}"
                    results.add(load, broker.name, outcome, aims)


if __name__ == "__main__":
    sys.exit(main())
