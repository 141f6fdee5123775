"""Delayed delivery: make bench ARGS="delivery [LOAD]..."

paced     10,000 records due in each of 20 seconds, in the order of the offsets
shuffled  the same due times in random order
burst     a million records due in the same second
pending   ten million records due over ten days, in random order: memory, disk, and the time of a restart

One schedule partition, a target of four, values of 100 bytes (`pending`: of 1). Late is the time from when a record was due to
when a consumer of committed records on the same machine received it. Meanwhile a probe sends ApiVersions every 5 ms: its
latency is how long others wait for the event loop.

The exit code is 0 when the p99 of paced and shuffled records is at most 100 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Consumer

from barnabas.cluster import free_ports
from barnabas.embedded import Broker
from protocol.messages.metadata import ApiVersionsRequest
from storage.log.delivery_time import DELIVER_AT
from tests.benchmark.load.numbered_records import NumberedBatches
from tests.support.loading import create, load
from tests.support.raw_client import RawClient
from tests.support.stall_lines import lines_of

LOADS = ("paced", "shuffled", "burst", "pending")
RATE, SECONDS = 10_000, 20
BATCH_RECORDS = 500
BURST = 1_000_000
PENDING, PENDING_DAYS = 10_000_000, 10
AIM_MS = 100.0
DAY_MS = 86_400_000
MIB = 1 << 20
_LEAD_MS = 8_000
_PROBE_EVERY_S = 0.005
_QUIET_S = 60.0


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", default=["paced", "shuffled", "burst"], metavar="LOAD")
    parser.add_argument("--records", type=int, default=PENDING, help="of the load `pending`")
    options = parser.parse_args()
    if set(options.loads) - set(LOADS):
        parser.error(f"the loads are {', '.join(LOADS)}")
    is_reached = True
    print(
        "| load | late, ms: p50 / p99 / longest | probe, ms | CPU of the node, us per record | s |\n|---|---|---|---|---|"
    )
    for name in options.loads:
        if name == "pending":
            _measure_pending(options.records)
        else:
            p99_ms = _measure_late(name)
            is_reached = is_reached and (name == "burst" or p99_ms <= AIM_MS)
    return 0 if is_reached else 1


# ---------------------------------------------------------------- late times
def _measure_late(name: str) -> float:
    count = BURST if name == "burst" else RATE * SECONDS
    with Broker() as broker:
        _create_topics(broker)
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        consumer = context.Process(target=_consume, args=(broker.bootstrap, count, sender))
        consumer.start()
        lead_ms = _LEAD_MS + count // 100  # to write them
        begin_ms = time.time_ns() // 1_000_000 + lead_ms
        due = begin_ms + np.arange(count) * 1000 // (count if name == "burst" else RATE)
        _schedule(broker, np.random.default_rng(1).permutation(due) if name == "shuffled" else due, b"x" * 100)
        time.sleep(max(0, begin_ms / 1000 - time.time()))
        process = psutil.Process(broker.pid)
        cpu_s, waits = sum(process.cpu_times()[:2]), list[float]()
        with _probe(broker, waits):
            late = receiver.recv()
        consumer.join()
        cpu_s = sum(process.cpu_times()[:2]) - cpu_s
        seconds = time.time() - begin_ms / 1000
        stalls = lines_of(broker.log())
    print(
        f"| {name} | {_quantiles(late)} | {_quantiles(waits)} | {cpu_s / count * 1e6:.1f} | {seconds:.1f} |", flush=True
    )
    print(*stalls, sep="\n", flush=True)
    return float(np.quantile(late, 0.99))


def _quantiles(milliseconds: Any) -> str:
    return " / ".join(f"{found:.1f}" for found in np.quantile(milliseconds, (0.5, 0.99, 1)))


def _create_topics(broker: Broker) -> None:
    with RawClient(broker.bootstrap, 60) as client:
        create(client, "target", partitions=4)
        create(client, "schedule", barnabas_deliver_to="target")


def _schedule(broker: Broker, due_ms: Any, value: bytes) -> None:
    batches = NumberedBatches(BATCH_RECORDS, value, scheduled=True)
    firsts = range(0, len(due_ms), BATCH_RECORDS)
    with RawClient(broker.bootstrap, 300) as client:
        load(client, "schedule", (batches.make(first, due_ms[first : first + BATCH_RECORDS]) for first in firsts))


def _consume(bootstrap: str, count: int, result: Any) -> None:
    """Sends how late each record is received, in ms."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "late",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe(["target"])
    late: list[float] = []
    last_s = time.time()
    while len(late) < count and (not late or time.time() < last_s + _QUIET_S):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            last_s = time.time()
            headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
            late.append(last_s * 1000 - int(headers[DELIVER_AT]))
    result.send(late)
    consumer.close()


@contextmanager
def _probe(broker: Broker, waits: list[float]) -> Iterator[None]:
    """Adds latencies in ms."""
    is_done = threading.Event()

    def ask() -> None:
        with RawClient(broker.bootstrap, 60) as client:
            while not is_done.wait(_PROBE_EVERY_S):
                begin = time.perf_counter()
                client.ask(ApiVersionsRequest(), 0)
                waits.append((time.perf_counter() - begin) * 1000)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


# ---------------------------------------------------------------- many pending records
def _measure_pending(count: int) -> None:
    port = free_ports(1)[0]
    with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}, start_timeout_s=300) as broker:
        process = psutil.Process(broker.pid)
        empty = process.memory_info().rss
        _create_topics(broker)
        begin_ms = time.time_ns() // 1_000_000 + DAY_MS
        due = np.random.default_rng(1).integers(begin_ms, begin_ms + PENDING_DAYS * DAY_MS, count)
        begin = time.monotonic()
        _schedule(broker, due, b"v")
        _wait_until_pending(port, count)
        print(f"| {count:,} records written and read, s | {time.monotonic() - begin:.0f} |", flush=True)
        print(
            f"| memory of the node, MiB, before and after | {empty / MIB:.0f}, {process.memory_info().rss / MIB:.0f} |"
        )
        disk = sum(path.stat().st_blocks * 512 for path in Path(broker.data_dir).rglob("schedule-0/*"))
        print(f"| disk of the schedule topic, MiB; of the queue | {disk / MIB:.0f}; 0 |", flush=True)
        broker.kill()
        begin = time.monotonic()
        broker.start()
        process = psutil.Process(broker.pid)
        print(f"| start after a kill until the node is ready, s | {time.monotonic() - begin:.1f} |", flush=True)
        cpu_s, waits = sum(process.cpu_times()[:2]), list[float]()
        with _probe(broker, waits):
            _wait_until_pending(port, count)
        cpu_s = sum(process.cpu_times()[:2]) - cpu_s
        print(f"| until the queue is built again, s; CPU, s | {time.monotonic() - begin:.0f}; {cpu_s:.0f} |")
        print(f"| probe meanwhile, ms: p50 / p99 / longest | {_quantiles(waits)} |")
        print(f"| memory of the node then, MiB | {process.memory_info().rss / MIB:.0f} |", flush=True)
        print(*lines_of(broker.log()), sep="\n", flush=True)


def _wait_until_pending(port: int, count: int) -> None:
    wanted = f'barnabas_schedule_pending{{topic="schedule",partition="0"}} {count}'
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            if wanted in answer.read().decode().replace(".0\n", "\n"):
                return
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
