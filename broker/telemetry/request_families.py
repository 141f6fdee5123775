"""The exposition of request times and errors: Apache Kafka's RequestMetrics, and our histograms.

RULES    1. Fetch is counted as FetchConsumer and FetchFollower, and in sum as Fetch, as in Apache Kafka.
         2. Responses without errors are all requests but the failed ones, and so those that still wait. If one of these fails,
            the counter stays until others have succeeded: a counter that fell would be a restart to Prometheus.
         3. Timed requests without a throttle time have one of 0. Every throttle time is recorded, also if few requests are
            timed: the number of zeros stays then, instead of falling.
NOT HERE What is recorded, and when (`request_metrics.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from broker.process.histograms import Distribution, Histogram
from broker.telemetry.families import PAUSE, Families, histogram, label_text, meter, summary
from broker.telemetry.request_metrics import ApiMetrics, RequestMetrics
from protocol.errors import ErrorCode

_BEAN: Final = "kafka_network_requestmetrics"
_FETCH: Final = "Fetch"
_THROTTLE: Final = "throttle"
_CODES: Final = frozenset(ErrorCode)
PHASES: Final = {
    "total": ("totaltimems", "from the whole request to the last byte of the response"),
    "queue": ("requestqueuetimems", "until the dispatcher begins"),
    "local": ("localtimems", "in the handler"),
    "remote": ("remotetimems", "waiting for followers, flushes, data, or earlier requests of the connection"),
    _THROTTLE: ("throttletimems", "for which the connection is not read, because of a quota"),
    "response_queue": ("responsequeuetimems", "from the complete response until sending begins"),
    "send": ("responsesendtimems", "until the socket has the last byte of the response"),
}
"""Of `ApiMetrics`: attribute, Apache Kafka's name, meaning."""


def _histogram_of(metrics: ApiMetrics, phase: str) -> Histogram:
    found = getattr(metrics, phase)
    assert isinstance(found, Histogram)
    return found


class RequestFamilies:
    """The families of some tables of requests."""

    def __init__(self, tables: Sequence[RequestMetrics]) -> None:
        self._tables = tables
        self._succeeded: Counter[str] = Counter()
        """What the page has shown, by API (rule 2)."""
        self._unthrottled: Counter[str] = Counter()
        """The same of requests without a throttle time (rule 3)."""

    def families(self) -> Families:
        """Requests, errors and times."""
        apis = self._by_name()
        yield meter(_BEAN, "Requests", "Requests by API and version.", _requests(apis))
        yield meter(_BEAN, "Errors", "Error codes in responses; NONE: responses without errors.", self._errors(apis))
        for phase, (name, explanation) in PHASES.items():
            found = [((("request", api),), self._distribution(api, phase, metrics)) for api, metrics in apis.items()]
            yield summary(f"{_BEAN}_{name}", f"Milliseconds {explanation}.", found)
            yield PAUSE
        yield histogram(
            "barnabas_request_duration_seconds",
            "Seconds that requests take, by API and phase.",
            self._durations(apis),
        )

    def _by_name(self) -> dict[str, list[ApiMetrics]]:
        """All versions of each API that was used; of Fetch also apart for consumers and followers."""
        apis: dict[str, list[ApiMetrics]] = defaultdict(list)
        for table in self._tables:
            for metrics in table.apis.values():
                metrics.time_all()
                apis[metrics.name].append(metrics)
                if metrics.name == _FETCH:
                    apis["FetchConsumer"].append(metrics)
                if metrics.follower is not None:
                    metrics.follower.time_all()
                    apis[_FETCH].append(metrics.follower)
                    apis["FetchFollower"].append(metrics.follower)
        return {name: apis[name] for name in sorted(apis)}

    def _errors(self, apis: dict[str, list[ApiMetrics]]) -> Iterator[tuple[str, int]]:
        for api, found in apis.items():
            errors: Counter[int] = Counter()
            for metrics in found:
                errors.update(metrics.errors)
            succeeded = sum(max(metrics.count - metrics.failed, 0) for metrics in found)
            errors[ErrorCode.NONE] = self._succeeded[api] = max(succeeded, self._succeeded[api])
            for code, count in sorted(errors.items()):
                yield label_text(("request", api), ("error", _error_name(code))), count

    def _distribution(self, api: str, phase: str, found: list[ApiMetrics]) -> Distribution:
        """Of an API; a phase that was not recorded was 0, but for the local one, which may be unknown."""
        count = sum(sum(one.total.buckets) for one in found)
        if phase == _THROTTLE:
            throttled = sum(sum(one.throttle.buckets) for one in found)
            self._unthrottled[api] = max(count - throttled, self._unthrottled[api])
            count = self._unthrottled[api] + throttled
        return Distribution([_histogram_of(one, phase) for one in found], None if phase == "local" else count)

    def _durations(
        self, apis: dict[str, list[ApiMetrics]]
    ) -> Iterator[tuple[tuple[tuple[str, str], ...], Distribution]]:
        for api, found in apis.items():
            for phase in PHASES:
                yield (("api", api), ("phase", phase)), self._distribution(api, phase, found)


def _requests(apis: dict[str, list[ApiMetrics]]) -> Iterator[tuple[str, int]]:
    for api, found in apis.items():
        by_version: Counter[int] = Counter()
        for metrics in found:
            by_version[metrics.version] += metrics.count
        for version, count in sorted(by_version.items()):
            yield label_text(("request", api), ("version", str(version))), count


def _error_name(code: int) -> str:
    """Apache Kafka's name; another broker's answer may have a code that is unknown here."""
    return ErrorCode(code).name if code in _CODES else str(code)
