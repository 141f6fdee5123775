"""How long requests take, by API, version and phase, and the errors of their responses (Kafka: RequestMetrics).

RULES    1. Phases, in order: *queue* until the dispatcher begins; *local* until the handler returns; *remote* until the
            response is complete: it waits for followers, flushes, data, or earlier requests of its connection; *response
            queue* until sending begins; *send* until the socket has the last byte. *throttle* is the time for which the
            connection is muted afterwards, which is not part of the total.
         2. Most requests have three phases other than 0: `record_immediate` updates only these. The others are 0 as often
            as the total was recorded and they were not.
         3. A request without a response (acks=0) ends when its handler is done.
         4. Errors are counted as in the response, one for each partition; a request without any counts as NONE.
NOT HERE The clock (`broker/network/connection.py`), metric names (`request_families.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.telemetry.histograms import Histogram

NEVER_SLOW: Final = 1 << 62


class ApiMetrics:
    """The requests of one API and version."""

    __slots__ = (
        "errors", "failed", "follower", "local", "name", "queue", "remote", "response_queue", "send", "slow_ns",
        "throttle", "total", "version", "waits_for_clients",
    )  # fmt: skip

    def __init__(self, name: str, version: int, slow_ns: int = NEVER_SLOW, *, waits_for_clients: bool = False) -> None:
        """`waits_for_clients`: the remote time is up to clients, as of a Fetch at the end of a log; it is never slow."""
        self.name = name
        """Kafka's name of the API, such as Produce."""
        self.version = version
        self.waits_for_clients = waits_for_clients
        self.slow_ns = slow_ns
        """From this duration on a request is slow."""
        self.total = Histogram()
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.response_queue = Histogram()
        self.send = Histogram()
        self.throttle = Histogram()
        self.failed = 0
        """Requests with an error."""
        self.errors: dict[int, int] = {}
        """How often each error code was sent."""
        self.follower: ApiMetrics | None = None
        """The requests of followers, which are not counted here; only Fetch has them."""

    def record_immediate(self, began_ns: int, answered_ns: int, sent_ns: int) -> bool:
        """Counts a request that did not wait; returns whether it was slow."""
        total_ns = sent_ns - began_ns
        total_us = total_ns // 1000
        histogram = self.total
        histogram.buckets[total_us.bit_length()] += 1
        histogram.sum_us += total_us
        local_us = (answered_ns - began_ns) // 1000
        histogram = self.local
        histogram.buckets[local_us.bit_length()] += 1
        histogram.sum_us += local_us
        send_us = total_us - local_us
        histogram = self.send
        histogram.buckets[send_us.bit_length()] += 1
        histogram.sum_us += send_us
        return total_ns >= self.slow_ns

    def record(self, times: RequestTimes, sent_ns: int) -> bool:
        """Counts a request whose phases are known; returns whether it was slow."""
        total_ns = sent_ns - times.arrived_ns
        self.total.record(total_ns // 1000)
        self.local.record((times.handled_ns - times.began_ns) // 1000)
        self.send.record((sent_ns - times.sending_ns) // 1000)
        remote_ns = times.completed_ns - times.handled_ns
        if times.began_ns > times.arrived_ns:
            self.queue.record((times.began_ns - times.arrived_ns) // 1000)
        if remote_ns > 0:
            self.remote.record(remote_ns // 1000)
        if times.sending_ns > times.completed_ns:
            self.response_queue.record((times.sending_ns - times.completed_ns) // 1000)
        return total_ns - (remote_ns if self.waits_for_clients else 0) >= self.slow_ns

    def count_errors(self, codes: Iterable[int]) -> None:
        """Counts the errors of one response."""
        self.failed += 1
        for code in codes:
            self.errors[code] = self.errors.get(code, 0) + 1

    def of_follower(self) -> ApiMetrics:
        """The metrics of a follower's requests."""
        if self.follower is None:
            self.follower = ApiMetrics(self.name, self.version, self.slow_ns, waits_for_clients=self.waits_for_clients)
        return self.follower


class RequestTimes:
    """When the phases of one request began, in monotonic nanoseconds."""

    __slots__ = ("arrived_ns", "began_ns", "completed_ns", "frame", "handled_ns", "metrics", "sending_ns")

    def __init__(self, metrics: ApiMetrics, frame: bytearray, arrived_ns: int, began_ns: int, handled_ns: int) -> None:
        self.metrics = metrics
        self.frame = None if metrics.slow_ns == NEVER_SLOW else frame
        """The request, if slow ones are logged."""
        self.arrived_ns = arrived_ns
        """The frame was whole."""
        self.began_ns = began_ns
        """The dispatcher began."""
        self.handled_ns = handled_ns
        """The handler returned."""
        self.completed_ns = handled_ns
        """The response was complete, and so were those before it."""
        self.sending_ns = handled_ns
        """The connection began to send it."""

    def phases_ms(self, sent_ns: int) -> dict[str, float]:
        """The phases of a request that is sent, by name (rule 1), in milliseconds."""
        ends = (self.arrived_ns, self.began_ns, self.handled_ns, self.completed_ns, self.sending_ns, sent_ns)
        names = ("queue", "local", "remote", "response queue", "send")
        return {
            name: round(max(end - start, 0) / 1e6, 3) for name, start, end in zip(names, ends, ends[1:], strict=False)
        }


UNCOUNTED: Final = ApiMetrics("", 0)
"""For requests that no dispatcher has begun."""


class RequestMetrics:
    """The requests of one listener kind, by API key and version."""

    def __init__(self, slow_ns: int = NEVER_SLOW) -> None:
        self._slow_ns = slow_ns
        self.apis: dict[tuple[int, int], ApiMetrics] = {}

    def of(self, api_key: int, name: str, version: int, *, waits_for_clients: bool) -> ApiMetrics:
        """The metrics of an API and version."""
        known = self.apis.get((api_key, version))
        if known is None:
            known = self.apis[api_key, version] = ApiMetrics(
                name, version, self._slow_ns, waits_for_clients=waits_for_clients
            )
        return known
