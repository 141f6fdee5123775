"""Charges a Fetch to the quotas of its client.

RULES    1. If the client must wait, the response is empty, and its session continues as if nothing had been read.
         2. A new session is deleted then: the client never gets its id.
NOT HERE Reading (`fetch.py`), other requests (`broker/handlers/throttling.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.handlers.records.fetch_sessions import NO_SESSION, FetchContext, FetchedPartition, FetchSessions
from broker.handlers.router import RequestContext
from protocol.codec import encoder
from protocol.messages.produce_fetch import FetchResponse
from protocol.records import FileRegion, ScatteredRegion
from replication.partition.topic_counts import BrokerCounts


class SentValues(NamedTuple):
    """What a partition had sent before the response."""

    partition: FetchedPartition
    high_watermark: int
    log_start_offset: int


def charged_response(
    context: RequestContext,
    fetch_context: FetchContext,
    response: FetchResponse,
    sent: Sequence[SentValues],
    new_sessions: FetchSessions | None,
    counts: BrokerCounts,
) -> FetchResponse:
    """The response, or an empty one if the client must wait.

    Args:
        context: of the request.
        fetch_context: its session.
        response: with everything that was read.
        sent: the partitions that were read.
        new_sessions: the session cache if the session is new, else None.
        counts: have the bytes of the response, which an empty one takes back.
    """
    meter = context.meter
    if meter is None or not meter.charge_fetch(encoder(FetchResponse, context.api_version)(response)):
        return response
    for topic in response.responses:
        regions = (region for data in topic.partitions for region in data.records or ())
        size = sum(region.length for region in regions if isinstance(region, FileRegion | ScatteredRegion))
        counts.count_sent(topic.topic, -size, is_follower=False)
    for partition, high_watermark, log_start_offset in sent:
        partition.update_response(high_watermark, log_start_offset)
        fetch_context.dirty[partition] = None
    if new_sessions is None:
        return FetchResponse(session_id=fetch_context.session_id, responses=[])
    new_sessions.remove(fetch_context.session_id)
    return FetchResponse(session_id=NO_SESSION, responses=[])
