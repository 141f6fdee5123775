"""How long requests take, by API, version and phase, and the errors of their responses (Kafka: RequestMetrics).

RULES    1. Phases, in order: *queue* until the dispatcher begins; *local* until the handler returns; *remote* until the
            response is complete: it waits for followers, flushes, data, or earlier requests of its connection; *response
            queue* until sending begins; *send* until the socket has the last byte. *throttle* is the time for which the
            connection is muted afterwards, which is not part of the total.
         2. All requests are counted. Timing all would cost 2 % of a small request: the first `EXACT` after a scrape are timed,
            then one of `SAMPLE_MASK` + 1, whose time counts `SAMPLE_MASK` + 1 times. All are timed while slow ones are logged.
         3. A request without a response (acks=0) ends when its handler is done.
         4. Errors are counted as in the response, one for each partition; a request without any counts as NONE.
NOT HERE The clock (`broker/network/connection.py`), metric names (`request_families.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.process.histograms import Histogram

NEVER_SLOW: Final = 1 << 62
EXACT: Final = 1_000
SAMPLE_MASK: Final = 15


class ApiMetrics:
    """The requests of one API and version."""

    __slots__ = (
        "_exact_left", "count", "errors", "failed", "follower", "local", "name", "queue", "remote", "response_queue",
        "sample_mask", "send", "slow_ns", "throttle", "total", "version", "waits_for_clients", "weight",
    )  # fmt: skip

    def __init__(self, name: str, version: int, slow_ns: int = NEVER_SLOW, *, waits_for_clients: bool = False) -> None:
        """`waits_for_clients`: the remote time is up to clients, as of a Fetch at the end of a log; it is never slow."""
        self.name = name
        """Kafka's name of the API, such as Produce."""
        self.version = version
        self.waits_for_clients = waits_for_clients
        self.slow_ns = slow_ns
        """From this duration on a request is slow."""
        self.count = 0
        """All requests, whether they were timed or not."""
        self.sample_mask = 0
        """A request is timed if the clock has none of these bits when it begins."""
        self.weight = 1
        """How many requests one of them stands for."""
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
        self.time_all()
        self.follower: ApiMetrics | None = None
        """The requests of followers, which are not counted here; only Fetch has them."""

    def record_immediate(self, began_ns: int, handled_ns: int, sent_ns: int) -> bool:
        """Counts the times of a request that did not wait; returns whether it was slow."""
        weight = self.weight
        total_ns = sent_ns - began_ns
        self.total.record(total_ns, weight)
        self.local.record(handled_ns - began_ns, weight)
        self.send.record(sent_ns - handled_ns, weight)
        self._count_timed()
        return total_ns >= self.slow_ns

    def record(self, times: RequestTimes, sent_ns: int) -> bool:
        """Counts the times of a request that waited; returns whether it was slow."""
        weight = times.weight
        total_ns = sent_ns - times.arrived_ns
        remote_ns = times.completed_ns - times.handled_ns
        self.total.record(total_ns, weight)
        self.send.record(sent_ns - times.sending_ns, weight)
        if times.handled_ns > times.began_ns:
            self.local.record(times.handled_ns - times.began_ns, weight)
        if times.began_ns > times.arrived_ns:
            self.queue.record(times.began_ns - times.arrived_ns, weight)
        if remote_ns > 0:
            self.remote.record(remote_ns, weight)
        if times.sending_ns > times.completed_ns:
            self.response_queue.record(times.sending_ns - times.completed_ns, weight)
        self._count_timed()
        return total_ns - (remote_ns if self.waits_for_clients else 0) >= self.slow_ns

    def _count_timed(self) -> None:
        self._exact_left -= 1
        if not self._exact_left:
            self.sample_mask, self.weight = SAMPLE_MASK, SAMPLE_MASK + 1

    def time_all(self) -> None:
        """Times the next `EXACT` requests without exception."""
        self.sample_mask, self.weight = 0, 1
        self._exact_left = EXACT if self.slow_ns == NEVER_SLOW else -1

    def count_errors(self, codes: Iterable[int]) -> None:
        """Counts the errors of one response."""
        self.failed += 1
        for code in codes:
            self.errors[code] = self.errors.get(code, 0) + 1

    def of_follower(self) -> ApiMetrics:
        """The metrics of a follower's request, which was counted here."""
        self.count -= 1
        if self.follower is None:
            self.follower = ApiMetrics(self.name, self.version, self.slow_ns, waits_for_clients=self.waits_for_clients)
        self.follower.count += 1
        return self.follower


class RequestTimes:
    """When the phases of one request began, in monotonic nanoseconds."""

    __slots__ = ("arrived_ns", "began_ns", "completed_ns", "frame", "handled_ns", "metrics", "sending_ns", "weight")

    def __init__(self, metrics: ApiMetrics, frame: bytearray, arrived_ns: int, began_ns: int, handled_ns: int) -> None:
        self.metrics = metrics
        self.weight = 1
        """How many requests it stands for."""
        self.frame = None if metrics.slow_ns == NEVER_SLOW else frame
        """The request, if slow ones are logged."""
        self.arrived_ns = arrived_ns
        """The frame was whole."""
        self.began_ns = began_ns
        """The dispatcher began."""
        self.handled_ns = handled_ns
        """The handler returned; as `began_ns` if that is unknown."""
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
