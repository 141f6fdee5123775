"""The loads of `broker`: their sizes, and their aims as factors of Apache Kafka's figures.

A group shares its preparation: the loads on one partition, and those on 100 and 1,000 partitions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from tests.benchmark.load import java, librdkafka, raw, sessions
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.running_broker import RunningBroker, evict_records
from tests.benchmark.report.rows import NO_AIMS
from tests.support.raw_client import RawClient

MIB, GIB = 2**20, 2**30
_REQUESTS = "requests"
_SMALL, _LARGE = "batches-of-16k", "batches-of-128k"
_WIDTHS = (100, 1000)
_WIDE_RECORDS = 4
SMALL_INDEXES: Mapping[str, Any] = {"segment.index.bytes": 64 << 10}
"""For wide topics, on both brokers. Apache Kafka maps two sparse index files of 10 MiB per partition, and on a
device with a large read-ahead the first store into each reads megabytes of zeros into the page cache: 16 GiB and 9 s
for 1,000 partitions on the machine of docs/performance.md. Small index files avoid this.
"""


class Scale(NamedTuple):
    requests: int
    wakes: int
    produce_bytes: int
    fetch_bytes: int
    log_bytes: int
    value_bytes: int
    wide_bytes: int


FULL = Scale(10_000, 2_000, GIB, 4 * GIB, GIB, GIB, 256 * MIB)
QUICK = Scale(2_000, 300, 128 * MIB, GIB // 2, 256 * MIB, 64 * MIB, 32 * MIB)
WARM_UP = Scale(8_000, 500, 512 * MIB, 512 * MIB, 512 * MIB, 128 * MIB, 128 * MIB)
QUICK_WARM_UP = Scale(4_000, 200, 128 * MIB, 256 * MIB, 256 * MIB, 64 * MIB, 32 * MIB)

Run = Callable[[RunningBroker, Scale], Outcome]


class Load(NamedTuple):
    name: str
    run: Run
    aims: Mapping[str, float] = NO_AIMS


class Group(NamedTuple):
    prepare: Callable[[RunningBroker, Scale], None]
    loads: list[Load]

    def only(self, chosen: Callable[[str], bool]) -> Group:
        return Group(self.prepare, [load for load in self.loads if chosen(load.name)])


# ---------------------------------------------------------------- one partition
def one_partition(*, with_java: bool) -> Group:
    """Requests one at a time, raw throughput, real clients."""
    loads = [
        Load("ApiVersions", lambda broker, scale: raw.api_versions(broker, scale.requests)),
        Load(
            "Produce 1 record, acks=1",
            lambda broker, scale: raw.produce_one(broker, scale.requests, _REQUESTS),
            {"p50 us": 1.3, "p99 us": 1.0, "CPU us": 1.0},
        ),
        Load(
            "Produce 1 record, acks=all", lambda broker, scale: raw.produce_one(broker, scale.requests, _REQUESTS, -1)
        ),
        Load("Fetch at the end", lambda broker, scale: raw.fetch_at_end(broker, scale.requests, _REQUESTS)),
        Load(
            "parked Fetch woken",
            lambda broker, scale: raw.wake(broker, scale.wakes, _REQUESTS),
            {"p50 us": 0.8, "p99 us": 0.2},
        ),
        Load("Produce, batches of 16 KiB", partial(_produce, 16 << 10), {"MB/s": 1.0, "CPU s/GiB": 0.9}),
        Load("Produce, batches of 128 KiB", partial(_produce, 128 << 10), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Produce, batches of 1 MB", partial(_produce, 1_000_000), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 64 KiB", partial(_fetch, _SMALL, 64 << 10), {"MB/s": 1.2, "CPU s/GiB": 0.8}),
        Load("Fetch 1 MiB", partial(_fetch, _LARGE, MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 8 MiB", partial(_fetch, _LARGE, 8 * MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 50 MiB", partial(_fetch, _LARGE, 50 * MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 1 MiB from disk", partial(_scan, MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
        Load("Fetch 8 MiB from disk", partial(_scan, 8 * MIB), {"MB/s": 1.0, "CPU s/GiB": 1.0}),
    ]
    for label, client in _clients(with_java=with_java):
        for value_bytes, size in ((1024, "1 KiB"), (100, "100 B")):
            loads += _client_loads(label, client, value_bytes, size)
    return Group(_prepare_one, loads)


def _prepare_one(broker: RunningBroker, scale: Scale) -> None:
    with RawClient(broker.bootstrap) as admin:
        for topic in (_REQUESTS, _SMALL, _LARGE):
            raw.create_topic(admin, topic)
    raw.fill(broker.bootstrap, _SMALL, 16 << 10, scale.log_bytes // 4)
    raw.fill(broker.bootstrap, _LARGE, 128 << 10, scale.log_bytes)


def _produce(batch_bytes: int, broker: RunningBroker, scale: Scale) -> Outcome:
    """To a new topic, which is deleted afterwards."""
    topic = f"load-{time.monotonic_ns()}"
    with RawClient(broker.bootstrap) as admin:
        raw.create_topic(admin, topic)
        outcome = raw.produce(broker, topic, batch_bytes, scale.produce_bytes)
        raw.delete_topic(admin, topic)
    return outcome


def _fetch(topic: str, max_bytes: int, broker: RunningBroker, scale: Scale) -> Outcome:
    total = scale.fetch_bytes if max_bytes >= MIB else scale.fetch_bytes // 4
    return raw.fetch(broker, topic, max_bytes, total)


def _scan(max_bytes: int, broker: RunningBroker, scale: Scale) -> Outcome:
    return raw.scan(broker, _LARGE, 128 << 10, max_bytes, scale.log_bytes)


def _clients(*, with_java: bool) -> list[tuple[str, ModuleType]]:
    return [("librdkafka", librdkafka), *([("Java", java)] if with_java else [])]


def _client_loads(label: str, client: ModuleType, value_bytes: int, size: str) -> list[Load]:
    """Records to a new topic, and from it."""
    topic = f"records-{label}-{value_bytes}"

    def count(scale: Scale) -> int:
        return scale.value_bytes // max(value_bytes, 256)

    def produce(broker: RunningBroker, scale: Scale) -> Outcome:
        with RawClient(broker.bootstrap) as admin:
            with contextlib.suppress(AssertionError):  # does not exist the first time
                raw.delete_topic(admin, topic)
            raw.create_topic(admin, topic)
        outcome: Outcome = client.produce(broker, topic, count(scale), value_bytes)
        return outcome

    return [
        Load(f"{label} produce {size}", produce),
        Load(f"{label} consume {size}", lambda broker, scale: client.consume(broker, topic, count(scale))),
    ]


# ---------------------------------------------------------------- many partitions
def many_partitions(*, with_java: bool) -> Group:
    """Requests over all partitions of wide topics; the preparation has written the records that are read."""
    clients = _clients(with_java=with_java)
    return Group(_prepare_many, [load for width in _WIDTHS for load in _wide_loads(width, clients)])


def _wide_loads(width: int, clients: list[tuple[str, ModuleType]]) -> list[Load]:
    topic, name = _wide(width), f"{width:,} partitions"

    def fetch(broker: RunningBroker, scale: Scale) -> Outcome:
        return sessions.fetch(broker, topic, width, _WIDE_RECORDS, 2 * scale.wide_bytes)

    loads = [
        Load(
            f"{name}: Produce 1 KiB to each",
            lambda broker, scale: raw.produce(broker, topic, 1024, scale.wide_bytes, width),
        ),
        Load(f"{name}: Fetch 4 KiB of each", fetch),
        Load(f"{name}: parked Fetch woken", lambda broker, scale: sessions.wake(broker, topic, width, scale.wakes)),
    ]
    for label, client in clients:
        loads += [
            Load(f"{name}: {label} produce", partial(_produce_wide, client, topic)),
            Load(f"{name}: {label} consume", partial(_consume_wide, client, topic)),
            Load(f"{name}: {label} consume from disk", partial(_consume_wide_from_disk, client, topic)),
        ]
    return loads


def _produce_wide(client: ModuleType, topic: str, broker: RunningBroker, scale: Scale) -> Outcome:
    outcome: Outcome = client.produce(broker, topic, scale.wide_bytes // 1024, 1024)
    return outcome


def _consume_wide(client: ModuleType, topic: str, broker: RunningBroker, scale: Scale) -> Outcome:
    outcome: Outcome = client.consume(broker, topic, scale.wide_bytes // 1024)
    return outcome


def _consume_wide_from_disk(client: ModuleType, topic: str, broker: RunningBroker, scale: Scale) -> Outcome:
    evict_records(broker)
    return _consume_wide(client, topic, broker, scale)


def _prepare_many(broker: RunningBroker, scale: Scale) -> None:
    for width in _WIDTHS:
        with RawClient(broker.bootstrap) as admin:
            raw.create_topic(admin, _wide(width), width, **SMALL_INDEXES)
        raw.fill(broker.bootstrap, _wide(width), _WIDE_RECORDS << 10, scale.wide_bytes, width)


def _wide(width: int) -> str:
    return f"wide-{width}"
