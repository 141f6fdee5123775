"""The brokers that are measured: started, watched at rest, ended by their handles."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import psutil

from barnabas.embedded import Broker
from protocol.messages.metadata import MetadataRequest
from tests.benchmark.load.meter import Outcome, cpu_seconds
from tests.benchmark.report.rows import OURS, THEIRS
from tests.support.kafka import STOCK_JVM, ApacheKafka
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_METADATA_VERSION = 9
_LIMIT_S = 120.0
_OURS = {"group.initial.rebalance.delay.ms": 0}
"""As `ApacheKafka` has it: a new group of the classic protocol would only be seen to wait."""

Node = Broker | ApacheKafka


class Site(NamedTuple):
    """A running broker, and those that replicate from it."""

    name: str
    bootstrap: str
    pid: int
    followers: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes that a load keeps busy."""
        return (self.pid, *self.followers)


@contextlib.contextmanager
def nodes(*, alone: bool) -> Iterator[dict[str, Node]]:
    """One node of each with stock settings, not started yet; they and their directories go with the block."""
    with contextlib.ExitStack() as held:
        made: dict[str, Node] = {OURS: Broker(settings=_OURS, start_timeout_s=_LIMIT_S, stop_timeout_s=_LIMIT_S)}
        if not alone:
            made[THEIRS] = ApacheKafka(jvm=STOCK_JVM)
        for node in made.values():
            held.push(node)
        yield made


@contextlib.contextmanager
def running(*, alone: bool) -> Iterator[list[Site]]:
    with nodes(alone=alone) as made:
        yield [start(name, node)[0] for name, node in made.items()]


def start(name: str, node: Node) -> tuple[Site, Outcome]:
    """Start until a Metadata request is answered; Kafka's formatting, a program of its own, does not count."""
    started = time.monotonic()
    node.start()
    seconds = node.start_s if isinstance(node, ApacheKafka) else time.monotonic() - started
    site = Site(name, node.bootstrap, node.pid)
    request = time.monotonic()
    until(lambda: _lists_itself(site), f"{name} names a broker", within_s=_LIMIT_S)
    return site, Outcome({"s": seconds + time.monotonic() - request, "CPU s": cpu_seconds(site.pid)})


def _lists_itself(site: Site) -> bool:
    with RawClient(site.bootstrap) as client:
        return bool(client.ask(MetadataRequest(topics=[]), _METADATA_VERSION).brokers)


def at_rest(sites: Sequence[Site], settle_s: float, watch_s: float) -> dict[str, Outcome]:
    """Let them settle, then watch them doing nothing, all over the same time: resting nodes do not disturb each other.

    Memory is what the process holds alone, and its share of what it holds with others (PSS).
    """
    time.sleep(settle_s)
    before = [cpu_seconds(site.pid) for site in sites]
    time.sleep(watch_s)
    return {
        site.name: Outcome(
            {
                "memory MiB": psutil.Process(site.pid).memory_full_info().pss / 2**20,
                "CPU %": 100 * (cpu_seconds(site.pid) - spent) / watch_s,
            }
        )
        for site, spent in zip(sites, before, strict=True)
    }
