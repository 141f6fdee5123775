"""One node compared with Apache Kafka, in one run, the brokers alternating per load: make bench

First every round starts new nodes: start, memory and CPU at rest, and after the first five million records. Then both
brokers run all the time with their stock settings, and Kafka with the memory of its own start script. In every round
each load runs on one broker and then on the other, in alternating order; a ratio is made of such a pair. Broker
and client share the machine: CPU times are disturbed least by other processes. With --quick three short rounds take three
minutes, and Java's clients run only if --only selects them.
"""

from __future__ import annotations

from tests.benchmark.load import catalogue, startup
from tests.benchmark.load.catalogue import Group, Scale
from tests.benchmark.load.running_broker import RunningBroker, at_rest, in_turn, running
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, options, show_progress
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
            for broker in in_turn(brokers, turn):
                outcome = load.run(broker, scale if turn else warm_up)
                if turn:
                    results.add(load.name, broker.name, outcome, load.aims)


def measure_all(results: Results, wanted: Wanted) -> None:
    """Starts with new nodes; then the groups of loads, one after the other on the same nodes."""
    scale = catalogue.QUICK if wanted.quick else catalogue.FULL
    warm_up = catalogue.QUICK_WARM_UP if wanted.quick else catalogue.WARM_UP
    rest_times = startup.QUICK if wanted.quick else startup.FULL
    wants_java = not wanted.quick or any("java" in text.lower() for text in wanted.only)
    with_java = wants_java and why_no_kafka() is None
    for turn in range(wanted.rounds if any(map(wanted.wants, startup.NAMES)) else 0):
        show_progress(f"round {turn + 1} of {wanted.rounds}: start and rest")
        startup.measure(results, rest_times, wanted)
    one = catalogue.one_partition(with_java=with_java).only(wanted.wants)
    many = catalogue.many_partitions(with_java=with_java).only(wanted.wants)
    if not one.loads and not many.loads:
        return
    with running(wanted) as brokers:
        if one.loads:
            measure(results, brokers, one, scale, warm_up, wanted.rounds)
        if wanted.wants(REST):
            for name, outcome in at_rest(brokers, *rest_times).items():
                results.add(REST, name, outcome)
        if many.loads:
            measure(results, brokers, many, scale, warm_up, wanted.rounds)


def main() -> int:
    return compare(options("broker", __doc__), measure_all)
