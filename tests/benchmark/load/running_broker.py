"""The measured brokers: started, observed at rest, stopped."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import psutil

from barnabas.embedded import Broker
from protocol.messages.metadata import MetadataRequest
from tests.benchmark.builds import Build, MeasuredBroker
from tests.benchmark.load.meter import Meter, Outcome, cpu_seconds
from tests.benchmark.report.rows import OURS, THEIRS
from tests.benchmark.report.terminal import Wanted
from tests.support.evicted_files import evict
from tests.support.kafka import STOCK_JVM, ApacheKafka
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_METADATA_VERSION = 9
_LIMIT_S = 120.0
_OURS = {"group.initial.rebalance.delay.ms": 0}
"""As in `ApacheKafka`: otherwise a new classic group waits this long."""

Node = Broker | ApacheKafka
T = TypeVar("T")


class RunningBroker(NamedTuple):
    """A running broker, and the processes that replicate from it."""

    name: str
    bootstrap: str
    pid: int
    followers: tuple[int, ...] = ()
    data_dir: Path = Path()

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes that a load uses."""
        return (self.pid, *self.followers)


def evict_records(broker: RunningBroker) -> None:
    """Drops all records from the page cache."""
    for directory, _, names in os.walk(broker.data_dir):
        evict(Path(directory, name) for name in names if name.endswith((".log", ".clog")))


def in_turn(brokers: Iterable[T], turn: int) -> list[T]:
    """The brokers in alternating order."""
    return list(brokers)[:: 1 if turn % 2 else -1]


@contextlib.contextmanager
def nodes(
    wanted: Wanted, variants: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> Iterator[dict[str, Node]]:
    """One node of each kind with stock settings, not started yet; stopped and removed after the block.

    `variants`: by name, settings of several Barnabas instead of one with each build.
    """
    with contextlib.ExitStack() as held:
        limits = {"start_timeout_s": _LIMIT_S, "stop_timeout_s": _LIMIT_S}
        wanted_ours: dict[str, tuple[Build, Mapping[str, str]]] = {
            name: (build, {}) for name, build in wanted.builds.items()
        }
        if variants:
            wanted_ours = {name: (wanted.builds[OURS], settings) for name, settings in variants.items()}
        made: dict[str, Node] = {
            name: MeasuredBroker(build, settings={**_OURS, **settings}, **limits)
            for name, (build, settings) in wanted_ours.items()
        }
        if not wanted.alone and wanted.against is None:
            made[THEIRS] = ApacheKafka(jvm=STOCK_JVM)
        for node in made.values():
            held.push(node)
        yield made


@contextlib.contextmanager
def running(wanted: Wanted) -> Iterator[list[RunningBroker]]:
    with nodes(wanted) as made:
        yield [start(name, node)[0] for name, node in made.items()]


def start(name: str, node: Node) -> tuple[RunningBroker, Outcome]:
    """Starts a node, until it answers a Metadata request; Kafka's formatting does not count."""
    started = time.monotonic()
    node.start()
    seconds = node.start_s if isinstance(node, ApacheKafka) else time.monotonic() - started
    broker = RunningBroker(name, node.bootstrap, node.pid, data_dir=node.data_dir)
    request = time.monotonic()
    until(lambda: _lists_itself(broker), f"{name} names a broker", within_s=_LIMIT_S)
    return broker, Outcome({"s": seconds + time.monotonic() - request, "CPU s": cpu_seconds(broker.pid)})


def _lists_itself(broker: RunningBroker) -> bool:
    with RawClient(broker.bootstrap) as client:
        return bool(client.ask(MetadataRequest(topics=[]), _METADATA_VERSION).brokers)


def at_rest(brokers: Sequence[RunningBroker], settle_s: float, watch_s: float) -> dict[str, Outcome]:
    """Waits until they settle, then measures them without load, all at the same time.

    Memory is private memory, and the share of shared memory (PSS).
    """
    time.sleep(settle_s)
    meters = [Meter(*broker.pids) for broker in brokers]
    with contextlib.ExitStack() as held:
        for meter in meters:
            held.enter_context(meter)
        time.sleep(watch_s)
    return {
        broker.name: Outcome(
            {
                "memory MiB": sum(psutil.Process(pid).memory_full_info().pss for pid in broker.pids) / 2**20,
                "CPU %": 100 * meter.cpu_s / meter.wall_s,
            }
        )
        for broker, meter in zip(brokers, meters, strict=True)
    }
