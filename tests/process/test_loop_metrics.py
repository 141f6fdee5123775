"""The metrics page shows how busy the event loop is."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from barnabas.cluster import free_ports
from barnabas.embedded import Broker
from protocol.messages.metadata import ApiVersionsRequest
from tests.benchmark.load.raw import Peer, fetch_frame, frame
from tests.support.loading import create
from tests.support.raw_client import RawClient

CPU, CPU_WAIT = "barnabas_event_loop_cpu_seconds_total", "barnabas_event_loop_cpu_wait_seconds_total"
REQUESTS = 20_000
REST_MS = 1000


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Broker, int]]:
    """A broker, and the port of its metrics page."""
    (port,) = free_ports(1)
    with Broker(settings={"barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}"}) as broker:
        yield broker, port


def counters(port: int) -> tuple[float, float]:
    """CPU time of the loop's thread, and the time in which it waited for a CPU."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.replace("{}", "").split() for line in lines if not line.startswith("#"))
    return float(values[CPU]), float(values[CPU_WAIT])


def flood(broker: Broker) -> None:
    """Sends requests without waiting for responses, so that the broker always has some to handle."""
    request = frame(ApiVersionsRequest(), 0)
    peer = Peer(broker.bootstrap)
    peer.send(request)
    unread = peer.answer() * REQUESTS
    sender = threading.Thread(target=peer.send, args=(request * REQUESTS,))
    sender.start()
    while unread:
        unread -= peer.answers()
    sender.join()
    peer.close()


def test_a_loop_that_always_has_requests_is_busy_all_the_time(served: tuple[Broker, int]) -> None:
    broker, port = served
    before_s, started_s = sum(counters(port)), time.monotonic()
    flood(broker)
    elapsed_s = time.monotonic() - started_s
    assert 0.5 < (sum(counters(port)) - before_s) / elapsed_s < 1.1


def test_a_loop_whose_only_request_waits_uses_no_cpu(served: tuple[Broker, int]) -> None:
    """How long it waits for a CPU depends on the other programs."""
    broker, port = served
    with RawClient(broker.bootstrap) as client:
        create(client, "t")
    peer = Peer(broker.bootstrap)
    before_s, started_s = counters(port)[0], time.monotonic()
    peer.call(fetch_frame("t", 0, 1024, REST_MS))
    elapsed_s = time.monotonic() - started_s
    peer.close()
    assert elapsed_s * 1000 >= REST_MS
    assert (counters(port)[0] - before_s) / elapsed_s < 0.2
