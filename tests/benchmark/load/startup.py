"""A node's first minute: its start, what it holds and does at rest, and again after its first five million records."""

from __future__ import annotations

from typing import NamedTuple

from tests.benchmark.load import librdkafka, raw
from tests.benchmark.load.running_broker import at_rest, nodes, start
from tests.benchmark.report.rows import Results
from tests.support.raw_client import RawClient

START = "start until Metadata is answered"
REST = "at rest after the start"
RECORDS = "first 5 M records of 100 B"
LOADED = "at rest after 5 M records"
NAMES = (START, REST, RECORDS, LOADED)
AIMS = {START: {"s": 0.15}, REST: {"memory MiB": 0.15, "CPU %": 0.1}, LOADED: {"memory MiB": 0.1, "CPU %": 0.1}}
_TOPIC = "first"
_COUNT = 5_000_000


class Patience(NamedTuple):
    """How long a node settles, and is watched."""

    settle_s: float
    watch_s: float


FULL = Patience(5.0, 5.0)
QUICK = Patience(2.0, 2.0)


def measure(results: Results, patience: Patience, *, alone: bool) -> None:
    """One round, with new nodes on empty directories."""
    with nodes(alone=alone) as made:
        sites = []
        for name, node in made.items():
            site, outcome = start(name, node)
            sites.append(site)
            results.add(START, site.name, outcome, AIMS[START])
        for name, outcome in at_rest(sites, *patience).items():
            results.add(REST, name, outcome, AIMS[REST])
        for site in sites:
            with RawClient(site.bootstrap) as admin:
                raw.create_topic(admin, _TOPIC)
            results.add(RECORDS, site.name, librdkafka.produce(site, _TOPIC, _COUNT, 100))
        for name, outcome in at_rest(sites, *patience).items():
            results.add(LOADED, name, outcome, AIMS[LOADED])
