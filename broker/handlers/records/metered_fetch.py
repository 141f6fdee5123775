"""A Fetch of a client with quotas.

RULES    1. If the client must wait, the response is empty, and its session continues as if nothing had been read.
         2. A new session is deleted then: the client never gets its id.
NOT HERE Reading (`delayed_fetch.py`), other requests (`broker/handlers/throttling.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from broker.handlers.records.delayed_fetch import DelayedFetch
from broker.handlers.records.fetch_sessions import NO_SESSION, FetchedPartition
from broker.quotas.request_meter import running
from protocol.codec import encoder
from protocol.file_region import FileRegion, ScatteredRegion
from protocol.messages.produce_fetch import FetchResponse


class _SentValues(NamedTuple):
    """What the session had sent of a partition before the response."""

    partition: FetchedPartition
    high_watermark: int
    log_start_offset: int


class MeteredFetch(DelayedFetch):
    """A Fetch of a client with quotas."""

    __slots__ = ()

    def read_dirty(self, fetched_mono_ms: int | None) -> None:
        """As of a DelayedFetch; its time counts for the request quota."""
        with running(self._ctx.meter):
            super().read_dirty(fetched_mono_ms)

    def answer(self) -> FetchResponse:
        """The response, or an empty one if the client must wait."""
        sent = [_SentValues(part, part.sent_high_watermark, part.sent_log_start_offset) for part in self._results]
        response = super().answer()
        meter = self._ctx.meter
        if meter is None or not meter.charge_fetch(encoder(FetchResponse, self._ctx.api_version)(response)):
            return response
        self._take_back(response, sent)
        session_id = self._fetch_context.session_id
        if not self._is_new_session:
            return FetchResponse(session_id=session_id, responses=[])
        self._services.sessions.remove(session_id)
        return FetchResponse(session_id=NO_SESSION, responses=[])

    def _take_back(self, response: FetchResponse, sent: list[_SentValues]) -> None:
        """Undo what the response has changed: the counts of its bytes, and what the session has sent."""
        counts = self._services.replicas.counts
        for topic in response.responses:
            size = 0
            for data in topic.partitions:
                for region in data.records or ():
                    assert isinstance(region, FileRegion | ScatteredRegion)
                    size += region.length
            counts.count_sent(topic.topic, -size, is_follower=False)
        for partition, high_watermark, log_start_offset in sent:
            partition.update_response(high_watermark, log_start_offset)
            self._fetch_context.dirty[partition] = None
