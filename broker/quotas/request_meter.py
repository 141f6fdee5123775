"""What one request of a client with quotas used, and how long the client must wait after it.

RULES    1. The time of a request is the time of its handler on the event loop, and of its writes and reads in threads, in
            percent of a second: 100 is one busy thread. Flushes are not included: many requests share one.
         2. After more than one exceeded quota the client waits for the longest time. A request's time counts for at most one
            window (`quota.window.size.seconds`), bytes without limit.
         3. A Produce counts when its response is complete, by the size of the request; with acks=0 its time does not count.
         4. A Fetch counts by the size of its response. If the client must wait, it gets no records and they do not count.
NOT HERE The sensors (`client_quota_manager.py`), its caller (`broker/handlers/throttling.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from broker.quotas.client_quota_manager import ClientSensors, QuotaSensor
from protocol.framing import Part
from replication.io_executor import Run
from storage.config.config_def import MAX_INT

_LENGTH_BYTES: Final = 4
_PERCENT_PER_NS: Final = 100 / 1e9


class MeteredThreads(Protocol):
    """The threads that work for requests."""

    metered: Callable[[Run], Run] | None
    """Measures the time of a job that a request submits now."""


class RequestMeter:
    """The use of one request."""

    __slots__ = (
        "_clock_ns",
        "_sensors",
        "_spent_ns",
        "_started_ns",
        "_threads",
        "_threads_ns",
        "is_exempt",
        "throttle_ms",
    )

    def __init__(self, sensors: ClientSensors, clock_ns: Callable[[], int], threads: MeteredThreads) -> None:
        """`clock_ns` is the monotonic clock in nanoseconds."""
        self._sensors = sensors
        self._clock_ns = clock_ns
        self._threads = threads
        self._threads_ns: list[int] = []  # threads append to it
        self._spent_ns = 0
        self._started_ns: int | None = None
        self.is_exempt = False
        """Whether the request does not count: it is from another broker."""
        self.throttle_ms: int | None = None
        """How long the client must wait, if that is decided."""

    def start(self) -> None:
        """The request runs."""
        self._started_ns = self._clock_ns()
        self._threads.metered = self._metered

    def stop(self) -> None:
        """The request waits, or is done."""
        if self._started_ns is not None:
            self._spent_ns += self._clock_ns() - self._started_ns
            self._started_ns = None
            self._threads.metered = None

    def _metered(self, run: Run) -> Run:
        """The job, whose time counts if a thread runs it: on the loop it counts already."""
        loop_thread = threading.get_ident()

        def timed() -> None:
            if threading.get_ident() == loop_thread:
                run()
                return
            started_ns = self._clock_ns()
            try:
                run()
            finally:
                self._threads_ns.append(self._clock_ns() - started_ns)

        return timed

    @property
    def is_running(self) -> bool:
        """Whether time counts now."""
        return self._started_ns is not None

    @property
    def max_fetch_bytes(self) -> int:
        """The most bytes that one Fetch may return."""
        fetch = self._sensors.fetch
        return MAX_INT if fetch is None or self.is_exempt else min(int(fetch.max_value), MAX_INT)

    def charge_time(self) -> None:
        """Count the time of the request."""
        mono_ms = self._mono_ms()
        self._throttle(None, 0, self._time_throttle_ms(mono_ms), mono_ms)

    def charge_produce(self, size: int, *, has_response: bool) -> None:
        """Count a Produce request of some bytes, and its time if it has a response."""
        mono_ms = self._mono_ms()
        produce = self._sensors.produce
        bytes_ms = 0 if produce is None else produce.record(size, mono_ms)
        self._throttle(produce, bytes_ms, self._time_throttle_ms(mono_ms) if has_response else 0, mono_ms)

    def charge_fetch(self, parts: list[Part]) -> bool:
        """Count the encoded message of a Fetch response; returns whether an empty one must be sent instead."""
        if self.is_exempt:
            return False
        size = _LENGTH_BYTES + sum(map(len, parts))
        mono_ms, fetch = self._mono_ms(), self._sensors.fetch
        time_ms = self._time_throttle_ms(mono_ms)
        bytes_ms = 0 if fetch is None else fetch.record(size, mono_ms)
        is_throttled = self._throttle(fetch, bytes_ms, time_ms, mono_ms)
        if is_throttled and fetch is not None:
            fetch.take_back(size, mono_ms)
        return is_throttled

    def _throttle(self, sensor: QuotaSensor | None, bytes_ms: int, time_ms: int, mono_ms: int) -> bool:
        """The client waits for the longer time, which the metrics of that quota show; returns whether it waits."""
        exceeded = sensor if bytes_ms > time_ms else self._sensors.request
        self.throttle_ms = max(bytes_ms, time_ms)
        if self.throttle_ms and exceeded is not None:
            exceeded.throttle_times.record(self.throttle_ms, mono_ms)
        return self.throttle_ms > 0

    def _mono_ms(self) -> int:
        return self._clock_ns() // 1_000_000

    def _time_throttle_ms(self, mono_ms: int) -> int:
        request = self._sensors.request
        if request is None:
            return 0
        running_ns = 0 if self._started_ns is None else self._clock_ns() - self._started_ns
        percent = (self._spent_ns + running_ns + sum(self._threads_ns)) * _PERCENT_PER_NS
        return min(request.record(percent, mono_ms), request.windows.window_ms)


@contextmanager
def running(meter: RequestMeter | None) -> Iterator[None]:
    """Count the time of a block, if it does not count already."""
    starts = meter is not None and not meter.is_running
    if meter is not None and starts:
        meter.start()
    try:
        yield
    finally:
        if meter is not None and starts:
            meter.stop()
