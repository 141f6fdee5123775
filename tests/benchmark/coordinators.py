"""Coordinators beside Apache Kafka: make bench ARGS="coordinators [OPTION]..."

    --rounds N           so many rounds, after one that warms up and does not count; 3 unless said
    --quick              one short round
    --only TEXT          loads whose name contains TEXT; may be repeated
    --alone              Barnabas alone
    --docs               the plot into docs/figures too, and the table in Markdown on the terminal

Transactions are those of version 2 (KIP-890): one Produce with a record of 100 bytes for each partition, one
TxnOffsetCommit, one EndTxn, each when the one before is answered; over one connection, or over eight with a transactional
id and a group each. Both brokers run all the time with their stock settings; each load goes to one of them and then to the
other, the first one changing from round to round.

Commits are of the offsets of one partition, or of a hundred, one behind the other on each connection, each connection for
a group of its own. Members come to a new group, all at the same time; then one more comes, and one goes; each time until all
have their shares (`load/classic_members.py`, `load/groups.py`). Last, each broker, alone, starts over a million commits
(`load/coordinator_loading.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.benchmark.load import groups
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.coordinator_loading import reload
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.raw import create_topic
from tests.benchmark.load.running_broker import Site, nodes, running
from tests.benchmark.load.transactions import transactions
from tests.benchmark.report.publish import measured
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import only, options, results_name, say, wishes
from tests.support.raw_client import RawClient

FULL, QUICK = 1.0, 0.3
"""Parts of the counts below."""
CLASSIC, CONSUMER = "classic", "consumer"
MANY = 1000
COMMITS = 1_000_000


class Load(NamedTuple):
    """One thing that is measured."""

    name: str
    run: Callable[[Site, str, float], Mapping[str, Outcome]]
    """On a site, with a name that nobody else has, and a part of its count; by the part of it that was measured."""
    aims: Mapping[str, float]
    rounds: int = MANY
    """At the most."""


def transacting(partitions: int, count: int, at_a_time: int = 1) -> Load:
    """Transactions that touch so many partitions."""

    def run(site: Site, name: str, part: float) -> Mapping[str, Outcome]:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, partitions)
        return {"": transactions(site, name, partitions, max(20, int(count * part)), at_a_time)}

    name = f"transactions, {partitions} partition{'s' if partitions > 1 else ''}"
    if at_a_time > 1:
        name += f", {at_a_time} at a time"
    return Load(name, run, {"transactions/s": 1.0, "p99 ms": 1.0})


def committing(partitions: int, count: int, at_a_time: int) -> Load:
    def run(site: Site, name: str, part: float) -> Mapping[str, Outcome]:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, partitions)
        return {"": groups.commits(site, name, int(count * part), at_a_time, partitions)}

    aims = {"commits/s": 1.0, "p50 us": 1.0, "p99 us": 1.0}
    return Load(f"commits of {partitions} partition{'s' if partitions > 1 else ''}, {at_a_time} at a time", run, aims)


def coming_and_going(kind: str, size: int) -> Load:
    """A new group, of one protocol or the other."""

    def run(site: Site, name: str, _part: float) -> Mapping[str, Outcome]:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, size + 1, **SMALL_INDEXES)
        return (groups.classic if kind == CLASSIC else groups.consumer)(site, name, size)

    return Load(f"{size} members ({kind})", run, {"ms": 1.0}, rounds=2)


LOADS = (
    transacting(1, 1000),
    transacting(10, 600),
    transacting(1, 400, at_a_time=8),
    transacting(10, 200, at_a_time=8),
    committing(1, 4_000, at_a_time=1),
    committing(1, 1_500, at_a_time=8),
    committing(100, 600, at_a_time=1),
    committing(100, 150, at_a_time=8),
    *(coming_and_going(kind, size) for kind in (CLASSIC, CONSUMER) for size in (10, 100, 500)),
)
RELOADING = "start over 1,000,000 commits"


def measure(results: Results, wanted: argparse.Namespace) -> None:
    """Every load in every round on every broker; the first round does not count."""
    rounds, part = (1, QUICK) if wanted.quick else (wanted.rounds, FULL)
    loads = [load for load in LOADS if not wanted.only or any(text in load.name for text in wanted.only)]
    with running(alone=wanted.alone) as sites:
        for turn in range(rounds + 1):
            for number, load in enumerate(loads):
                if turn > load.rounds:
                    continue
                say(f"round {turn} of {rounds}: {load.name}")
                for site in sites if turn % 2 else reversed(sites):
                    outcomes = load.run(site, f"coordinators-{number}-{turn}", part if turn else QUICK)
                    for what, outcome in outcomes.items() if turn else ():
                        results.add(f"{load.name}: {what}" if what else load.name, site.name, outcome, load.aims)
    if not wanted.only or any(text in RELOADING for text in wanted.only):
        say(RELOADING)
        with nodes(alone=wanted.alone) as made:
            for name, node in made.items():
                commits = int(COMMITS * part)
                results.add(RELOADING, name, reload(name, node, commits), {"s": 1.0})


def main() -> int:
    wanted = wishes(only(options("coordinators", __doc__)))
    results = Results(results_name("coordinators", wanted), {"rounds": wanted.rounds})
    return measured(results, lambda: measure(results, wanted), docs=wanted.docs)


if __name__ == "__main__":
    sys.exit(main())
