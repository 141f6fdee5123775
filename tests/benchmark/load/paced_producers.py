"""Quiet producers: many connections, each sending one record now and then, each answer timed from when it was due.

RULES    1. A request leaves when it is due, whether or not the answer before it has come: who has to wait makes those
            behind wait too, and that counts (no coordinated omission).
         2. A probe among them asks for ApiVersions, which touches no disk: what makes it wait is the broker's loop.
NOT HERE What disturbs them (disturbances.py).
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
    """Since the beginning."""
    latency_s: float


class Samples(NamedTuple):
    produced: list[Sample]
    probed: list[Sample]


class _Talker:
    """One connection and its requests."""

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
        """Send what is due, and know when the next is."""
        self.socket.sendall(self._request)
        self._sent.append(self.due_s)
        self.due_s += self._every_s

    def receive(self, began_s: float) -> None:
        """Take the answers that have come."""
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
    """Produce for so long, and wait for the answers."""
    samples = Samples([], [])
    request = produce_frame(topic, batch(1, 100))
    talkers = [
        _Talker(bootstrap, request, EVERY_S, EVERY_S * number / CONNECTIONS, samples.produced)
        for number in range(CONNECTIONS)
    ]
    talkers.append(_Talker(bootstrap, frame(ApiVersionsRequest(), 0), PROBE_EVERY_S, 0.0, samples.probed))
    gc.collect()
    gc.disable()
    try:
        _talk(talkers, seconds)
    finally:
        gc.enable()
        for talker in talkers:
            talker.socket.close()
    return samples


def _talk(talkers: list[_Talker], seconds: float) -> None:
    by_socket = {talker.socket: talker for talker in talkers}
    order = count()
    due = [(talker.due_s, next(order), talker) for talker in talkers]
    heapq.heapify(due)
    began_s = time.perf_counter()
    while True:
        now_s = time.perf_counter() - began_s
        while due and due[0][0] <= now_s:
            _, _, talker = heapq.heappop(due)
            talker.send()
            if talker.due_s < seconds:
                heapq.heappush(due, (talker.due_s, next(order), talker))
        if not due and not any(talker.is_waiting for talker in talkers):
            return
        assert now_s < seconds + PATIENCE_S, "answers are missing"
        wait_s = max(0.0, due[0][0] - now_s) if due else 1.0
        for ready in select.select(list(by_socket), (), (), wait_s)[0]:
            by_socket[ready].receive(began_s)
