"""One node compared with Apache Kafka, in one run, the brokers alternating per load: make bench ARGS="[broker] [OPTION]..."

    --quick              three short rounds in three minutes, Java's tools only if --only selects them;
                         else three longer ones with them
    --rounds N           number of rounds, after an uncounted warm-up round
    --only TEXT          loads whose name contains TEXT; may be repeated
    --alone              Barnabas only, without Apache Kafka
    --docs               the plots into docs/figures too, and the table in Markdown on the terminal

First every round starts new nodes: start, memory and CPU at rest, and after the first five million records. Then both
brokers run all the time with their stock settings, and Kafka with the memory of its own start script. In every round
each load runs on one broker and then on the other, in alternating order; a ratio is made of such a pair. Broker
and client share the machine: CPU times are disturbed least by other processes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.benchmark.load import catalogue, startup
from tests.benchmark.load.catalogue import Group, Scale
from tests.benchmark.load.running_broker import RunningBroker, at_rest, running
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import only, options, parse_arguments, results_name, show_progress
from tests.support.kafka import why_no_kafka

REST = "at rest after the loads on one partition"


def measure(
    results: Results, brokers: list[RunningBroker], group: Group, scale: Scale, warm_up: Scale, rounds: int
) -> None:
    """Runs every load of a group in every round on every broker."""
    for broker in brokers:
        show_progress(f"preparing {broker.name}")
        group.prepare(broker, scale)
    for turn in range(rounds + 1):
        for load in group.loads:
            show_progress(f"round {turn} of {rounds}: {load.name}")
            for broker in brokers if turn % 2 else reversed(brokers):
                outcome = load.run(broker, scale if turn else warm_up)
                if turn:
                    results.add(load.name, broker.name, outcome, load.aims)


def measure_startup(results: Results, wanted: argparse.Namespace) -> None:
    for turn in range(wanted.rounds):
        show_progress(f"round {turn + 1} of {wanted.rounds}: start and rest")
        startup.measure(results, startup.QUICK if wanted.quick else startup.FULL, alone=wanted.alone)


def measure_loads(results: Results, wanted: argparse.Namespace, chosen: Callable[[str], bool]) -> None:
    """The groups of loads, one after the other on the same nodes."""
    scale = catalogue.QUICK if wanted.quick else catalogue.FULL
    warm_up = catalogue.QUICK_WARM_UP if wanted.quick else catalogue.WARM_UP
    one = catalogue.one_partition(with_java=wanted.java).only(chosen)
    many = catalogue.many_partitions(with_java=wanted.java).only(chosen)
    if not one.loads and not many.loads:
        return
    with running(alone=wanted.alone) as brokers:
        if one.loads:
            measure(results, brokers, one, scale, warm_up, wanted.rounds)
        if chosen(REST):
            for name, outcome in at_rest(brokers, *(startup.QUICK if wanted.quick else startup.FULL)).items():
                results.add(REST, name, outcome)
        if many.loads:
            measure(results, brokers, many, scale, warm_up, wanted.rounds)


def main() -> int:
    wanted = parse_arguments(only(options("broker", __doc__)))
    wants_java = not wanted.quick or any("java" in text.lower() for text in wanted.only)
    wanted.java = wants_java and why_no_kafka() is None

    def chosen(name: str) -> bool:
        return not wanted.only or any(text.lower() in name.lower() for text in wanted.only)

    def measure() -> None:
        if any(map(chosen, startup.NAMES)):
            measure_startup(results, wanted)
        measure_loads(results, wanted, chosen)

    results = Results(results_name("broker", wanted), {"rounds": wanted.rounds})
    return measured(results, measure, docs=wanted.docs)


if __name__ == "__main__":
    sys.exit(main())
