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

Commits are of one offset each, one behind the other on each connection, each connection for a group of its own. In a
rebalance all members of a classic group join anew at the same time and are given their shares; of the consumer protocol as
many members as there are partitions join a new group, and beat until each is in the last epoch with a partition.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.benchmark.load import groups
from tests.benchmark.load.catalogue import SMALL_INDEXES
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.raw import create_topic
from tests.benchmark.load.site import Site, running
from tests.benchmark.load.transactions import transactions
from tests.benchmark.report.publish import publish
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import options, say, wishes
from tests.support.raw_client import RawClient

FULL, QUICK = 1.0, 0.3
"""Parts of the counts below."""


class Load(NamedTuple):
    """One thing that is measured."""

    name: str
    run: Callable[[Site, str, float], Outcome]
    """On a site, with a name that nobody else has, and a part of its count."""
    aims: Mapping[str, float]


def transacting(partitions: int, count: int, at_a_time: int = 1) -> Load:
    """Transactions that touch so many partitions."""

    def run(site: Site, name: str, part: float) -> Outcome:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, partitions)
        return transactions(site, name, partitions, max(20, int(count * part)), at_a_time)

    name = f"transactions, {partitions} partition{'s' if partitions > 1 else ''}"
    if at_a_time > 1:
        name += f", {at_a_time} at a time"
    return Load(name, run, {"transactions/s": 1.0, "p99 ms": 1.0})


def committing(count: int, at_a_time: int = 1) -> Load:
    """Commits of single offsets."""

    def run(site: Site, name: str, part: float) -> Outcome:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, 1)
        return groups.commits(site, name, int(count * part), at_a_time)

    aims = {"commits/s": 1.0, "p50 us": 1.0, "p99 us": 1.0}
    return Load(f"commits of offsets, {at_a_time} at a time", run, aims)


def rebalancing(size: int) -> Load:
    """A classic group in which all join anew."""

    def run(site: Site, name: str, _part: float) -> Outcome:
        return groups.rebalance(site, name, size)

    return Load(f"rebalance of {size} classic members", run, {"ms": 1.0})


def joining(size: int) -> Load:
    """A consumer group that is joined."""

    def run(site: Site, name: str, _part: float) -> Outcome:
        with RawClient(site.bootstrap) as client:
            create_topic(client, name, size, **SMALL_INDEXES)
        return groups.joins(site, name, size)

    return Load(f"{size} members join a consumer group", run, {"ms": 1.0})


LOADS = (
    transacting(1, 1000),
    transacting(10, 600),
    transacting(1, 400, at_a_time=8),
    transacting(10, 200, at_a_time=8),
    committing(4_000),
    committing(1_500, at_a_time=8),
    rebalancing(500),
    joining(500),
)


def measure(results: Results, wanted: argparse.Namespace) -> None:
    """Every load in every round on every broker; the first round does not count."""
    rounds, part = (1, QUICK) if wanted.quick else (wanted.rounds, FULL)
    loads = [load for load in LOADS if not wanted.only or any(text in load.name for text in wanted.only)]
    with running(alone=wanted.alone) as sites:
        for turn in range(rounds + 1):
            for number, load in enumerate(loads):
                say(f"round {turn} of {rounds}: {load.name}")
                for site in sites if turn % 2 else reversed(sites):
                    outcome = load.run(site, f"coordinators-{number}-{turn}", part if turn else QUICK)
                    if turn:
                        results.add(load.name, site.name, outcome, load.aims)


def main() -> int:
    parser = options("coordinators", __doc__)
    parser.add_argument("--only", action="append", default=[], help=argparse.SUPPRESS)
    wanted = wishes(parser)
    is_part = wanted.alone or wanted.only
    results = Results(
        f"coordinators{'-quick' if wanted.quick else ''}{'-part' if is_part else ''}", {"rounds": wanted.rounds}
    )
    started = time.monotonic()
    try:
        measure(results, wanted)
    finally:  # what was measured is not lost with a load that fails
        say("")
        results.settings["seconds"] = round(time.monotonic() - started, 1)
        status = publish(results, docs=wanted.docs)
    return status


if __name__ == "__main__":
    sys.exit(main())
