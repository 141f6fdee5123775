"""A node's start, its memory and CPU at rest, and again after its first five million records."""

from __future__ import annotations

from typing import NamedTuple

from tests.benchmark.load import librdkafka, raw
from tests.benchmark.load.running_broker import at_rest, nodes, start
from tests.benchmark.report.rows import Results
from tests.benchmark.report.terminal import Wanted
from tests.support.raw_client import RawClient

START = "start until Metadata is answered"
REST = "at rest after the start"
RECORDS = "first 5 M records of 100 B"
LOADED = "at rest after 5 M records"
NAMES = (START, REST, RECORDS, LOADED)
AIMS = {START: {"s": 0.15}, REST: {"memory MiB": 0.15, "CPU %": 0.1}, LOADED: {"memory MiB": 0.1, "CPU %": 0.1}}
_TOPIC = "first"
_COUNT = 5_000_000


class RestTimes(NamedTuple):
    """How long a node settles, and is measured."""

    settle_s: float
    watch_s: float


FULL = RestTimes(5.0, 5.0)
QUICK = RestTimes(2.0, 2.0)


def measure(results: Results, times: RestTimes, wanted: Wanted) -> None:
    """One round, with new nodes on empty directories."""
    with nodes(wanted) as made:
        brokers = []
        for name, node in made.items():
            broker, outcome = start(name, node)
            brokers.append(broker)
            results.add(START, broker.name, outcome, AIMS[START])
        for name, outcome in at_rest(brokers, *times).items():
            results.add(REST, name, outcome, AIMS[REST])
        for broker in brokers:
            with RawClient(broker.bootstrap) as admin:
                raw.create_topic(admin, _TOPIC)
            results.add(RECORDS, broker.name, librdkafka.produce(broker, _TOPIC, _COUNT, 100))
        for name, outcome in at_rest(brokers, *times).items():
            results.add(LOADED, name, outcome, AIMS[LOADED])
