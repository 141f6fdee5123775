"""The fast path for the most frequent consumer Fetch: one partition, with records available.

RULES    1. The response is the same as that of `fetch.py`, byte for byte. Only decoding the request and encoding the response
            differ; sessions, authorization, limits and reads are those of the handler.
         2. For any other request it returns None without side effects and the handler takes over: another layout
            (`protocol/single_partition_codec.py`), a new or final session epoch, other dirty partitions, an error of any
            kind, an aborted transaction, fewer bytes than min_bytes, or data outside the page cache.
NOT HERE Validation of a Fetch, waiting (`fetch.py`). Why there are two paths:
         docs/decisions/0015-fast-path-for-single-partition-requests.md
"""

from __future__ import annotations

from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchSession
from broker.handlers.router import FastPath, FastPaths, RequestContext
from protocol.errors import KafkaError
from protocol.framing import Part
from protocol.single_partition_codec import FIRST_FETCH_VERSION, FetchLayout, SinglePartitionFetch
from replication.partition.follower_progress import FetchPosition
from replication.partition.partition import DivergingEpoch
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Isolation, ReadInfo


class FetchFastPath:
    """Answers one version of Fetch."""

    def __init__(self, handler: FetchHandler, version: int) -> None:
        self._handler = handler
        self._layout = FetchLayout(version)
        self._uncommitted = handler.consumer(Isolation.HIGH_WATERMARK, version)
        self._committed = handler.consumer(Isolation.LAST_STABLE, version)

    def answer(self, ctx: RequestContext, frame: bytearray, position: int) -> list[Part] | None:
        """The response to the request at `position`, or None (rule 2)."""
        fetch = self._layout.decode_request(frame, position)
        if fetch is None:
            return None
        topic, topic_id, index, offset, leader_epoch, fetched_epoch, partition_max_bytes, max_bytes, *_ = fetch
        handler = self._handler
        replicas = handler.replicas
        try:
            if topic_id:
                topic = handler.topic_name(topic_id)
            partition = replicas.partitions.get((topic, index))
            if partition is None or partition.high_watermark <= offset:  # not on this broker, or the fetch has to wait
                return None
            session = None
            if fetch.session_epoch != FINAL_EPOCH:
                session = self._session_of(fetch)
                if session is None:
                    return None
            elif fetch.session_id != NO_SESSION:
                return None
            if handler.select_replica is not None:
                return None
            handler.authorize_consumer(ctx, topic)
            response_max_bytes = min(max_bytes, handler.max_bytes)
            info = replicas.read(
                topic,
                index,
                FetchPosition(offset, leader_epoch, fetched_epoch),
                min(response_max_bytes, partition_max_bytes),
                self._committed if fetch.isolation_level else self._uncommitted,
                min_one_batch=True,
            )
        except (KafkaError, DivergingEpoch):
            return None
        if isinstance(info, DiskLookup):
            return None
        regions, size, high_watermark, stable, start, _, aborted = info
        if not size or aborted or (size < min(fetch.min_bytes, response_max_bytes) and fetch.max_wait_ms > 0):
            return None
        if session is not None:
            self._update_session(session, fetch, info, ctx.mono_ms)
        bounds = high_watermark, stable, start
        return self._layout.encode_response(
            ctx.correlation_id, fetch, bounds, size, regions, has_empty_list=aborted is not None
        )

    def _session_of(self, fetch: SinglePartitionFetch) -> FetchSession | None:
        """The session, if this partition is its only dirty one."""
        session = self._handler.sessions.find(fetch.session_id)
        if session is None or session.epoch != fetch.session_epoch or session.waiter is not None:
            return None
        partition = session.partitions.get((fetch.topic_id or fetch.topic, fetch.partition))
        if partition is None or partition.topic is None:
            return None
        dirty = session.dirty
        return session if not dirty or (len(dirty) == 1 and partition in dirty) else None

    def _update_session(self, session: FetchSession, fetch: SinglePartitionFetch, info: ReadInfo, mono_ms: int) -> None:
        """Update the session; more records may follow, so the partition stays dirty."""
        partition = session.partitions[fetch.topic_id or fetch.topic, fetch.partition]
        partition.update_request(fetch)
        partition.update_response(info.high_watermark, info.log_start_offset)
        session.dirty[partition] = None
        self._handler.sessions.advance(session, mono_ms)


def fast_paths(handler: FetchHandler) -> FastPaths:
    """The fast path of each version that has one."""

    def fast_path(version: int) -> FastPath | None:
        return FetchFastPath(handler, version).answer if version >= FIRST_FETCH_VERSION else None

    return fast_path
