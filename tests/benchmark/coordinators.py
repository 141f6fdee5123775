"""Coordinators compared with Apache Kafka: make bench ARGS="coordinators"

Transactions are those of version 2 (KIP-890): one Produce with a record of 100 bytes for each partition, one
TxnOffsetCommit, one EndTxn, each after the previous response; over one connection, or over eight with a transactional
id and a group each. Both brokers run all the time with their stock settings; each load runs on one broker and then on the
other, in alternating order.

Commits are of the offsets of one partition, or of a hundred, in sequence on each connection, each connection for its
own group. Members join a new group at the same time; then another one joins, and one leaves; each time until all
have their assignments (`load/classic_members.py`, `load/groups.py`). Last, each broker separately starts with a million
commits (`load/coordinator_loading.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.benchmark.load import groups
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.coordinator_loading import reload
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.raw import create_topic
from tests.benchmark.load.running_broker import RunningBroker, in_turn, nodes, running
from tests.benchmark.load.transactions import transactions
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted, options, show_progress
from tests.support.raw_client import RawClient

FULL, QUICK = 1.0, 0.3
"""Factors of the counts below."""
CLASSIC, CONSUMER = "classic", "consumer"
MANY = 1000
COMMITS = 1_000_000


class Load(NamedTuple):
    name: str
    partitions: int
    """Of a new topic."""
    run: Callable[[RunningBroker, str, float], Mapping[str, Outcome]]
    """Takes a broker, the topic and the factor of its count; returns the outcome of each of its parts."""
    aims: Mapping[str, float]
    rounds: int = MANY
    """At most."""


def transactions_load(partitions: int, count: int, at_a_time: int = 1) -> Load:
    """Transactions over this number of partitions."""

    def run(broker: RunningBroker, topic: str, part: float) -> Mapping[str, Outcome]:
        return {"": transactions(broker, topic, partitions, max(20, int(count * part)), at_a_time)}

    name = f"transactions, {partitions} partition{'s' if partitions > 1 else ''}"
    if at_a_time > 1:
        name += f", {at_a_time} at a time"
    return Load(name, partitions, run, {"transactions/s": 1.0, "p99 ms": 1.0})


def commits_load(partitions: int, count: int, at_a_time: int) -> Load:
    def run(broker: RunningBroker, topic: str, part: float) -> Mapping[str, Outcome]:
        return {"": groups.commits(broker, topic, int(count * part), at_a_time, partitions)}

    name = f"commits of {partitions} partition{'s' if partitions > 1 else ''}, {at_a_time} at a time"
    return Load(name, partitions, run, {"commits/s": 1.0, "p50 us": 1.0, "p99 us": 1.0})


def membership_changes(kind: str, size: int) -> Load:
    """A new group of one of the two protocols."""
    change = groups.classic if kind == CLASSIC else groups.consumer
    return Load(
        f"{size} members ({kind})",
        size + 1,
        lambda broker, topic, _: change(broker, topic, size),
        {"ms": 1.0},
        rounds=2,
    )


LOADS = (
    transactions_load(1, 1000),
    transactions_load(10, 600),
    transactions_load(1, 400, at_a_time=8),
    transactions_load(10, 200, at_a_time=8),
    commits_load(1, 4_000, at_a_time=1),
    commits_load(1, 1_500, at_a_time=8),
    commits_load(100, 600, at_a_time=1),
    commits_load(100, 150, at_a_time=8),
    *(membership_changes(kind, size) for kind in (CLASSIC, CONSUMER) for size in (10, 100, 500)),
)
RELOADING = "start over 1,000,000 commits"


def measure(results: Results, wanted: Wanted) -> None:
    """Every load in every round on every broker; the first round does not count."""
    rounds, part = wanted.rounds, QUICK if wanted.quick else FULL
    loads = [load for load in LOADS if wanted.wants(load.name)]
    with running(wanted) as brokers:
        for turn in range(rounds + 1):
            for number, load in enumerate(loads):
                if turn > load.rounds:
                    continue
                show_progress(f"round {turn} of {rounds}: {load.name}")
                for broker in in_turn(brokers, turn):
                    topic = f"coordinators-{number}-{turn}"
                    with RawClient(broker.bootstrap) as client:
                        create_topic(client, topic, load.partitions, **(SMALL_INDEXES if load.partitions > 100 else {}))
                    outcomes = load.run(broker, topic, part if turn else QUICK)
                    for what, outcome in outcomes.items() if turn else ():
                        results.add(f"{load.name}: {what}" if what else load.name, broker.name, outcome, load.aims)
    if wanted.wants(RELOADING):
        show_progress(RELOADING)
        with nodes(wanted) as made:
            for name, node in made.items():
                commits = int(COMMITS * part)
                results.add(RELOADING, name, reload(name, node, commits), {"s": 1.0})


def main() -> int:
    return compare(options("coordinators", __doc__, quick_rounds=1), measure)
