"""Paced producers: many connections, each sending a record at fixed times; latencies count from the time it was due.

RULES    1. A request is sent when it is due, whether or not the previous response has arrived: requests delayed by a
            slow one count too (no coordinated omission).
         2. A probe sends ApiVersions requests, which use no disk: it measures the broker's event loop.
NOT HERE The background work (background_work.py).
"""

from __future__ import annotations

import gc
import heapq
import select
import socket
import time
from collections import deque
from itertools import count
from struct import Struct
from typing import Final, NamedTuple

from protocol.messages.metadata import ApiVersionsRequest
from tests.benchmark.load.raw import batch, frame, produce_frame

CONNECTIONS: Final = 20
EVERY_S: Final = 0.020
PROBE_EVERY_S: Final = 0.005
PATIENCE_S: Final = 30.0
_LENGTH = Struct(">i")


class Sample(NamedTuple):
    due_s: float
    """Since the start."""
    latency_s: float


class Samples(NamedTuple):
    produced: list[Sample]
    probed: list[Sample]


class _PacedConnection:
    def __init__(self, bootstrap: str, request: bytes, every_s: float, first_s: float, into: list[Sample]) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._every_s = every_s
        self.due_s = first_s
        self._sent: deque[float] = deque()
        self._unread = b""
        self._into = into

    @property
    def is_waiting(self) -> bool:
        return bool(self._sent)

    def send(self) -> None:
        """Sends the due request, and computes the time of the next."""
        self.socket.sendall(self._request)
        self._sent.append(self.due_s)
        self.due_s += self._every_s

    def receive(self, began_s: float) -> None:
        """Reads the responses that have arrived."""
        data = self._unread + self.socket.recv(65536)
        if not data:
            raise EOFError("the broker hung up")
        now_s = time.perf_counter() - began_s
        while len(data) >= 4 and len(data) >= 4 + _LENGTH.unpack_from(data)[0]:
            data = data[4 + _LENGTH.unpack_from(data)[0] :]
            due_s = self._sent.popleft()
            self._into.append(Sample(due_s, now_s - due_s))
        self._unread = data


def measure(bootstrap: str, topic: str, seconds: float) -> Samples:
    """Produces for this time, and waits for the responses."""
    samples = Samples([], [])
    request = produce_frame(topic, batch(1, 100))
    connections = [
        _PacedConnection(bootstrap, request, EVERY_S, EVERY_S * number / CONNECTIONS, samples.produced)
        for number in range(CONNECTIONS)
    ]
    connections.append(_PacedConnection(bootstrap, frame(ApiVersionsRequest(), 0), PROBE_EVERY_S, 0.0, samples.probed))
    gc.collect()
    gc.disable()
    try:
        _run(connections, seconds)
    finally:
        gc.enable()
        for connection in connections:
            connection.socket.close()
    return samples


def _run(connections: list[_PacedConnection], seconds: float) -> None:
    by_socket = {connection.socket: connection for connection in connections}
    order = count()
    due = [(connection.due_s, next(order), connection) for connection in connections]
    heapq.heapify(due)
    began_s = time.perf_counter()
    while True:
        now_s = time.perf_counter() - began_s
        while due and due[0][0] <= now_s:
            _, _, connection = heapq.heappop(due)
            connection.send()
            if connection.due_s < seconds:
                heapq.heappush(due, (connection.due_s, next(order), connection))
        if not due and not any(connection.is_waiting for connection in connections):
            return
        assert now_s < seconds + PATIENCE_S, "answers are missing"
        wait_s = max(0.0, due[0][0] - now_s) if due else 1.0
        for ready in select.select(list(by_socket), (), (), wait_s)[0]:
            by_socket[ready].receive(began_s)
