"""One node beside Apache Kafka, in one run, load by load in turn: make bench ARGS="[broker] [OPTION]..."

    --quick              three short rounds in three minutes, Java's tools only if --only says so;
                         else three longer ones with them
    --rounds N           so many rounds, after one that warms up and does not count
    --only TEXT          loads whose name contains TEXT; may be repeated
    --alone              Barnabas alone, without Apache Kafka: for a comparison with itself
    --docs               the plots into docs/figures too, and the table in Markdown on the terminal

First every round starts new nodes: start, memory and CPU at rest, and after the first five million records. Then both
brokers run all the time with their stock settings, and Kafka with the memory of its own start script. In every round
each load goes to one of them and then to the other, the first one changing; a ratio is made of these two. Broker
and client share the machine: figures of processor time suffer least from others on it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.benchmark.load import catalogue, startup
from tests.benchmark.load.catalogue import Group, Scale
from tests.benchmark.load.running_broker import Site, at_rest, running
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import only, options, results_name, say, wishes
from tests.support.kafka import why_no_kafka

REST = "at rest after the loads on one partition"


def measure(results: Results, sites: list[Site], group: Group, scale: Scale, warm_up: Scale, rounds: int) -> None:
    """Run every load of a group in every round on every broker."""
    for site in sites:
        say(f"preparing {site.name}")
        group.prepare(site, scale)
    for turn in range(rounds + 1):
        for load in group.loads:
            say(f"round {turn} of {rounds}: {load.name}")
            for site in sites if turn % 2 else reversed(sites):
                outcome = load.run(site, scale if turn else warm_up)
                if turn:
                    results.add(load.name, site.name, outcome, load.aims)


def measure_fresh(results: Results, wanted: argparse.Namespace) -> None:
    for turn in range(wanted.rounds):
        say(f"round {turn + 1} of {wanted.rounds}: start and rest")
        startup.measure(results, startup.QUICK if wanted.quick else startup.FULL, alone=wanted.alone)


def measure_loads(results: Results, wanted: argparse.Namespace, chosen: Callable[[str], bool]) -> None:
    """The groups of loads, one after the other on the same nodes."""
    scale = catalogue.QUICK if wanted.quick else catalogue.FULL
    warm_up = catalogue.QUICK_WARM_UP if wanted.quick else catalogue.WARM_UP
    one = catalogue.one_partition(with_java=wanted.java).only(chosen)
    many = catalogue.many_partitions(with_java=wanted.java).only(chosen)
    if not one.loads and not many.loads:
        return
    with running(alone=wanted.alone) as sites:
        if one.loads:
            measure(results, sites, one, scale, warm_up, wanted.rounds)
        if chosen(REST):
            for name, outcome in at_rest(sites, *(startup.QUICK if wanted.quick else startup.FULL)).items():
                results.add(REST, name, outcome)
        if many.loads:
            measure(results, sites, many, scale, warm_up, wanted.rounds)


def main() -> int:
    wanted = wishes(only(options("broker", __doc__)))
    wants_java = not wanted.quick or any("java" in text.lower() for text in wanted.only)
    wanted.java = wants_java and why_no_kafka() is None

    def chosen(name: str) -> bool:
        return not wanted.only or any(text.lower() in name.lower() for text in wanted.only)

    def measure() -> None:
        if any(map(chosen, startup.NAMES)):
            measure_fresh(results, wanted)
        measure_loads(results, wanted, chosen)

    results = Results(results_name("broker", wanted), {"rounds": wanted.rounds})
    return measured(results, measure, docs=wanted.docs)


if __name__ == "__main__":
    sys.exit(main())
