"""Charges requests to the quotas of their clients, and makes clients over a quota wait (KIP-13, KIP-124, KIP-219).

RULES    1. The response leaves at once, with throttle_time_ms; then the connection is not read for so long.
         2. A request that the controller throttled waits for the longer of both times.
         3. Requests between brokers do not count: Fetch of followers, WriteTxnMarkers.
         4. A client with a quota gets no fast path: the time of the response is in the message.
NOT HERE The quotas (`broker/quotas/`), the bytes of a Fetch (`records/metered_fetch.py`), muting
         (`broker/network/connection.py`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.handlers.router import Handler, RequestContext
from broker.quotas.client_quota_manager import ClientQuotaManager
from broker.quotas.request_meter import MeteredThreads, RequestMeter, running
from protocol.api import ApiKey
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage
from replication.quota_rates import QuotaWindows

_EXEMPT: Final = frozenset({ApiKey.WRITE_TXN_MARKERS})


class Throttling:
    """Charges the requests of a listener."""

    def __init__(
        self, windows: QuotaWindows, threads: MeteredThreads, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`clock_ns` is the monotonic clock in nanoseconds."""
        self.quotas = ClientQuotaManager(windows)
        self._threads = threads
        self._clock_ns = clock_ns

    def updated(self, image: MetadataImage) -> Throttling | None:
        """Use the quotas of a new image; returns None if it has none."""
        self.quotas.update(image.quotas)
        return self if self.quotas.is_enabled else None

    def metered(self, handler: Handler, context: RequestContext, size: int) -> Handler | None:
        """The handler for a request frame of some bytes whose client has a quota; None: it has none."""
        sensors = self.quotas.find(context.principal, context.client_id, context.mono_ms)
        if sensors is None or context.api_key in _EXEMPT:
            return None
        return partial(self._handle, handler, RequestMeter(sensors, self._clock_ns, self._threads), size)

    def _handle(
        self, handler: Handler, meter: RequestMeter, size: int, context: RequestContext, request: Any
    ) -> Message | Completion[Any] | None:
        with running(meter):
            answer = handler(context._replace(meter=meter), request)
        if isinstance(answer, Completion):
            return answer.map(partial(self._throttle, context, meter, size))
        return self._throttle(context, meter, size, answer)

    def _throttle(
        self, context: RequestContext, meter: RequestMeter, size: int, answer: Message | None
    ) -> Message | None:
        """Charge the request and mute the connection if it must wait; returns the response with the time."""
        if meter.is_exempt:
            return answer
        if context.api_key == ApiKey.PRODUCE:
            meter.charge_produce(size, has_response=answer is not None)
        elif meter.throttle_ms is None:
            meter.charge_time()
        throttle_ms = max(meter.throttle_ms or 0, getattr(answer, "throttle_time_ms", 0))
        if not throttle_ms:
            return answer
        context.connection.mute(throttle_ms)
        return with_throttle_time(answer, throttle_ms)


def with_throttle_time(answer: Message | None, throttle_ms: int) -> Message | None:
    """A response with this time, if it has the field; a handler may send the same response to others."""
    if not hasattr(answer, "throttle_time_ms"):
        return answer
    answer = copy.copy(answer)
    answer.throttle_time_ms = throttle_ms  # type: ignore[union-attr]  # not every response has it
    return answer
