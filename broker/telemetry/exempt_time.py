"""The time of requests that no quota limits, as a share of a second (Kafka: `exempt-request-time` of `type=Request`).

RULES    1. Exempt are the requests of other nodes: Fetch of followers and WriteTxnMarkers on brokers' listeners; Raft's
            requests and AlterPartition on controllers'. Apache Kafka also exempts Produce without a response.
         2. A request's time is that of its handler and of sending the response, as far as requests are timed.
NOT HERE Measuring (`request_metrics.py`), the quota of request time (`broker/quotas/request_meter.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.telemetry.rates import Rate
from broker.telemetry.request_metrics import ApiMetrics, RequestMetrics
from protocol.api import ApiKey

_OF_BROKERS: Final = frozenset({ApiKey.WRITE_TXN_MARKERS})
_OF_CONTROLLERS: Final = frozenset({
    ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT, ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH,
    ApiKey.DESCRIBE_QUORUM, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UPDATE_RAFT_VOTER,
    ApiKey.ALTER_PARTITION,
})  # fmt: skip
_PERCENT_PER_NS: Final = 100 / 1e9


class ExemptTime:
    """The exempt requests of one node."""

    def __init__(self, brokers: RequestMetrics, controllers: RequestMetrics, mono_ms: Callable[[], int]) -> None:
        """`brokers` and `controllers` are the requests on their listeners."""
        self._brokers = brokers
        self._controllers = controllers
        self._rate = Rate(mono_ms)

    def percent(self) -> float:
        """Their time in the last minute, as far as there were scrapes: 100 is one busy thread."""
        spent_ns = sum(metrics.local.sum_ns + metrics.send.sum_ns for metrics in self._exempt())
        return self._rate.per_second(spent_ns * _PERCENT_PER_NS)

    def _exempt(self) -> Iterator[ApiMetrics]:
        for table, exempt in ((self._brokers, _OF_BROKERS), (self._controllers, _OF_CONTROLLERS)):
            for (api_key, _), metrics in table.apis.items():
                if api_key in exempt:
                    yield metrics
                if metrics.follower is not None:
                    yield metrics.follower
