"""One node beside Apache Kafka, in one run, load by load in turn: python -m tests.benchmark broker [OPTION]...

    --quick              three rounds in about three minutes; else five longer ones
    --rounds N           so many rounds, after one that warms up and does not count
    --only TEXT          loads whose name contains TEXT; may be repeated
    --alone              Barnabas alone, without Apache Kafka: for a comparison with itself
    --java               Apache Kafka's own performance tools too
    --output FILE        where the samples go, as JSON; build/bench/broker.json unless said

Both brokers run all the time with their stock settings, and Kafka with the memory of its own start script. In every
round each load goes to one of them and then to the other, the first one changing; a ratio is made of these two. Broker
and client share the machine: figures of processor time suffer least from others on it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from barnabas.embedded import Broker
from tests.benchmark.load import java, librdkafka, raw
from tests.benchmark.load.report import OURS, THEIRS, Row, show, write
from tests.benchmark.start import at_rest
from tests.support.kafka import STOCK_JVM, ApacheKafka, why_no_kafka
from tests.support.raw_client import RawClient

MIB, GIB = 2**20, 2**30
OUTPUT = Path("build/bench/broker.json")
REQUESTS = "requests"
SMALL, LARGE = "batches-of-16k", "batches-of-128k"
RECORDS = "records"
REST = "at rest afterwards"


class Site(NamedTuple):
    """A running broker."""

    name: str
    bootstrap: str
    pid: int


class Scale(NamedTuple):
    """How much of everything."""

    requests: int
    wakes: int
    produce_bytes: int
    fetch_bytes: int
    log_bytes: int
    value_bytes: int


FULL = Scale(10_000, 2_000, GIB, 4 * GIB, GIB, GIB)
QUICK = Scale(3_000, 400, 256 * MIB, GIB, 512 * MIB, 128 * MIB)
WARM_UP = Scale(8_000, 500, 512 * MIB, 512 * MIB, 512 * MIB, 128 * MIB)

Run = Callable[[Site, Scale], dict[str, float]]


class Load(NamedTuple):
    """What is measured together, and how much of Kafka's figure is aimed at."""

    name: str
    run: Run
    aims: dict[str, float]


def on_fresh_topic(run: Callable[[Site, Scale, str], dict[str, float]]) -> Run:
    """Give the load a topic of its own, which goes when the load is over."""

    def runs(site: Site, scale: Scale) -> dict[str, float]:
        topic = f"load-{time.monotonic_ns()}"
        with RawClient(site.bootstrap) as client:
            raw.create_topic(client, topic)
            figures = run(site, scale, topic)
            raw.delete_topic(client, topic)
        return figures

    return runs


def raw_produce(batch_bytes: int) -> Run:
    return on_fresh_topic(
        lambda site, scale, topic: raw.produce(site.bootstrap, site.pid, topic, batch_bytes, scale.produce_bytes)
    )


def raw_fetch(topic: str, max_bytes: int) -> Run:
    def runs(site: Site, scale: Scale) -> dict[str, float]:
        total = scale.fetch_bytes if max_bytes >= MIB else scale.fetch_bytes // 4
        return raw.fetch(site.bootstrap, site.pid, topic, max_bytes, total)

    return runs


def client(module: object, value_bytes: int) -> tuple[Run, Run]:
    """Produce with a client, then consume the same."""

    def count(scale: Scale) -> int:
        return scale.value_bytes // max(value_bytes, 256)

    def topic(site: Site) -> str:
        return f"{RECORDS}-{module.__name__.rpartition('.')[2]}-{value_bytes}"  # type: ignore[attr-defined]

    def produce(site: Site, scale: Scale) -> dict[str, float]:
        with RawClient(site.bootstrap) as admin, contextlib.suppress(AssertionError):
            raw.delete_topic(admin, topic(site))
        with RawClient(site.bootstrap) as admin:
            raw.create_topic(admin, topic(site))
        return module.produce(site.bootstrap, site.pid, topic(site), count(scale), value_bytes)  # type: ignore[attr-defined,no-any-return]

    def consume(site: Site, scale: Scale) -> dict[str, float]:
        return module.consume(site.bootstrap, site.pid, topic(site), count(scale), value_bytes)  # type: ignore[attr-defined,no-any-return]

    return produce, consume


def loads(*, with_java: bool) -> list[Load]:
    """All of them, with what design aims at."""
    found = [
        Load("ApiVersions", lambda site, scale: raw.api_versions(site.bootstrap, site.pid, scale.requests), {}),
        Load(
            "Produce 1 record, acks=1",
            lambda site, scale: raw.produce_one(site.bootstrap, site.pid, scale.requests, REQUESTS),
            {"p50 us": 1.3, "p99 us": 1.0, "CPU us": 1.0},
        ),
        Load(
            "Produce 1 record, acks=all",
            lambda site, scale: raw.produce_one(site.bootstrap, site.pid, scale.requests, REQUESTS, -1),
            {},
        ),
        Load(
            "Fetch at the end",
            lambda site, scale: raw.fetch_at_end(site.bootstrap, site.pid, scale.requests, REQUESTS),
            {},
        ),
        Load(
            "parked Fetch woken",
            lambda site, scale: raw.wake(site.bootstrap, site.pid, scale.wakes, REQUESTS),
            {"p50 us": 0.8, "p99 us": 0.2},
        ),
        Load("Produce, batches of 16 KiB", raw_produce(16 << 10), {"MB/s": 1.0, "CPU s/GiB": 0.9}),
        Load("Produce, batches of 128 KiB", raw_produce(128 << 10), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Produce, batches of 1 MB", raw_produce(1_000_000), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 64 KiB", raw_fetch(SMALL, 64 << 10), {"MB/s": 1.2, "CPU s/GiB": 0.8}),
        Load("Fetch 1 MiB", raw_fetch(LARGE, MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 8 MiB", raw_fetch(LARGE, 8 * MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 50 MiB", raw_fetch(LARGE, 50 * MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
    ]
    for module, label in ((librdkafka, "librdkafka"), (java, "Java")):
        if module is java and not with_java:
            continue
        for value_bytes, size in ((1024, "1 KiB"), (100, "100 B")):
            produce, consume = client(module, value_bytes)
            found += [Load(f"{label} produce {size}", produce, {}), Load(f"{label} consume {size}", consume, {})]
    return found


@contextlib.contextmanager
def brokers(*, alone: bool) -> Iterator[list[Site]]:
    """Start what is measured."""
    with contextlib.ExitStack() as running:
        ours = running.enter_context(Broker())
        sites = [Site(OURS, ours.bootstrap, ours.pid)]
        if not alone:
            kafka = running.enter_context(ApacheKafka(jvm=STOCK_JVM))
            sites.append(Site(THEIRS, kafka.bootstrap, kafka.pid))
        yield sites


def prepare(site: Site, scale: Scale) -> None:
    """Make what all rounds read."""
    with RawClient(site.bootstrap) as admin:
        for topic in (REQUESTS, SMALL, LARGE):
            raw.create_topic(admin, topic)
    raw.fill(site.bootstrap, SMALL, 16 << 10, scale.log_bytes // 4)
    raw.fill(site.bootstrap, LARGE, 128 << 10, scale.log_bytes)


def measure(sites: list[Site], chosen: list[Load], scale: Scale, warm_up: Scale, rounds: int) -> list[Row]:
    """Run every load in every round on every broker."""
    for site in sites:
        prepare(site, scale)
    rows: dict[tuple[str, str], Row] = {}
    for turn in range(rounds + 1):
        for load in chosen:
            say(f"round {turn} of {rounds}: {load.name}")
            for site in sites if turn % 2 else reversed(sites):
                for figure, value in load.run(site, scale if turn else warm_up).items():
                    row = rows.setdefault((load.name, figure), Row(load.name, figure, load.aims.get(figure)))
                    if turn:
                        row.samples[site.name].append(value)
    say("")
    return list(rows.values())


def say(what: str) -> None:
    """Tell whoever looks on what is going on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", flush=True, file=sys.stderr)


def rest(sites: list[Site]) -> list[Row]:
    """What is held and done when the load is over."""
    memory, cpu = Row(REST, "memory MiB", 0.1), Row(REST, "CPU %", 0.1)
    for site in sites:
        figures = at_rest(site.pid, 0.0)
        memory.samples[site.name].append(figures.memory_mib)
        cpu.samples[site.name].append(figures.cpu_percent)
    return [memory, cpu]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="broker", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--java", action="store_true")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args()


def main() -> int:
    wanted = options()
    if not wanted.alone and (reason := why_no_kafka()) is not None:
        print(f"Nothing to compare with, so Barnabas alone: {reason}")
        wanted.alone = True
    chosen = [
        load
        for load in loads(with_java=wanted.java)
        if not wanted.only or any(text.lower() in load.name.lower() for text in wanted.only)
    ]
    scale = QUICK if wanted.quick else FULL
    rounds = wanted.rounds or (3 if wanted.quick else 5)
    started = time.monotonic()
    with brokers(alone=wanted.alone) as sites:
        rows = measure(sites, chosen, scale, WARM_UP, rounds)
        if not wanted.only:
            rows += rest(sites)
    settings = {"rounds": rounds, "scale": scale._asdict(), "seconds": round(time.monotonic() - started, 1)}
    show(rows)
    write(wanted.output, rows, settings)
    print(f"least / median / most of {rounds} rounds; {settings['seconds']:.0f} s; all samples in {wanted.output}")
    missed = [row for row in rows if row.is_missed]
    if missed:
        print("behind the aim: " + "; ".join(str(row) for row in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
