"""Fetch: read the dirty partitions; respond when there are enough bytes, else wait and read again.

RULES    1. Immediate responses: max_wait_ms is 0, no partitions, min_bytes reached, any error, a diverging epoch, or a
            preferred read replica. Otherwise the request waits until a partition changes or max_wait_ms has passed.
NOT HERE Reading and waiting (`delayed_fetch.py`), one partition with records in memory (`fetch_fast_path.py`), sessions and
         dirty partitions (`fetch_sessions.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.records.delayed_fetch import DelayedFetch
from broker.handlers.records.fetch_fast_path import FetchFastPath
from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.metered_fetch import MeteredFetch
from broker.handlers.router import FastPath, RequestContext, Route
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.frame_codecs.single_partition_codec import FIRST_FETCH_VERSION
from protocol.messages.produce_fetch import FetchRequest, FetchResponse
from replication.completion import Completion
from replication.partition.partition import CONSUMER, Reader
from storage.log.log_reader import Isolation

FUTURE_LOCAL_REPLICA: Final = -3
_FIRST_VERSION_WITH_REPLICA_STATE: Final = 15


class FetchHandler:
    """Handles Fetch."""

    def __init__(self, services: FetchServices) -> None:
        self.services = services

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [Route(ApiKey.FETCH, 4, 18, self.handle, fast_path=self.fast_path)]

    def fast_path(self, version: int) -> FastPath | None:
        """The fast path of a version, if it has one."""
        return FetchFastPath(self.services, version).answer if version >= FIRST_FETCH_VERSION else None

    def handle(self, ctx: RequestContext, request: FetchRequest) -> FetchResponse | Completion[FetchResponse]:
        """Handle a Fetch, now or later."""
        services = self.services
        reader = self._reader(ctx.api_version, request)
        if reader.is_follower:
            ctx.connection.metrics = ctx.metrics.of_follower()
        fetch_context = services.sessions.open(request, ctx.api_version, ctx.mono_ms, is_follower=reader.is_follower)
        if isinstance(fetch_context, ErrorCode):
            return FetchResponse(error_code=fetch_context, responses=[])
        fetch = (DelayedFetch if ctx.meter is None else MeteredFetch)(services, ctx, request, reader, fetch_context)
        if isinstance(fetch_context.waiter, DelayedFetch):
            fetch_context.waiter.supersede()
        fetch.read_dirty(ctx.mono_ms)
        fetch_context.requested_mono_ms = ctx.mono_ms
        if request.max_wait_ms <= 0 or not fetch_context.partitions or fetch.is_enough:
            return fetch.answer() if fetch.is_complete else fetch.park_for_disk()
        return fetch.park(ctx.mono_ms + fetch.max_wait_ms(request.max_wait_ms))

    def _reader(self, version: int, request: FetchRequest) -> Reader:
        """The reader of a request: replica id and isolation level."""
        broker_epoch = -1
        replica_id = request.replica_id
        if version >= _FIRST_VERSION_WITH_REPLICA_STATE and request.replica_state is not None:
            replica_id = request.replica_state.replica_id
            broker_epoch = request.replica_state.replica_epoch
        isolation = Isolation.LAST_STABLE if request.isolation_level else Isolation.HIGH_WATERMARK
        if replica_id == CONSUMER:
            return self.services.consumer(isolation, version)
        if replica_id >= 0:
            return Reader(replica_id, Isolation.LOG_END, leader_only=True, broker_epoch=broker_epoch)
        if replica_id == FUTURE_LOCAL_REPLICA:
            return Reader(replica_id, Isolation.LOG_END, leader_only=False)
        return Reader(replica_id, isolation, leader_only=False)
