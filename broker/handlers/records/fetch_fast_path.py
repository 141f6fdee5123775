"""The fast path of Fetch: answers one partition with records in memory, or none at its end, without messages.

RULES    1. The response is that of the handler (`fetch.py`), byte for byte. The fast path returns None before any change for
            any other request: another layout, a new or final session epoch, other dirty partitions, an error of any kind, an
            aborted transaction, fewer bytes than min_bytes, or data outside the page cache
            (docs/decisions/0015-fast-path-for-single-partition-requests.md).
         2. A fetch at the end is answered only if it waits for nothing and has no session: a session leaves out partitions
            without records.
NOT HERE The layout of the request (`protocol/frame_codecs/single_partition_codec.py`), several partitions
         (`fetch_topics_fast_path.py`).
"""

from __future__ import annotations

from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import has_session
from broker.handlers.records.fetch_topics_fast_path import FetchTopicsFastPath
from broker.handlers.router import RequestContext
from protocol.errors import KafkaError
from protocol.frame_codecs.single_partition_codec import FetchLayout
from protocol.framing import Part
from replication.partition.follower_progress import DivergingEpoch, FetchPosition
from storage.io.disk_lookup import DiskLookup
from storage.log.log_reader import Isolation


class FetchFastPath:
    """The fast path of one version."""

    __slots__ = ("_committed", "_layout", "_services", "_several", "_uncommitted")

    def __init__(self, services: FetchServices, version: int) -> None:
        self._services = services
        self._layout = FetchLayout(version)
        self._several = FetchTopicsFastPath(services, version)
        self._uncommitted = services.consumer(Isolation.HIGH_WATERMARK, version)
        self._committed = services.consumer(Isolation.LAST_STABLE, version)

    def answer(self, ctx: RequestContext, frame: bytearray, position: int) -> list[Part] | None:
        """The response to the request at `position`, or None."""
        fetch = self._layout.decode_request(frame, position)
        if fetch is None:
            return self._several.answer(ctx, frame, position)
        services, topic, offset = self._services, fetch.topic, fetch.fetch_offset
        in_session = None
        try:
            if fetch.topic_id:
                topic = services.topic_name(fetch.topic_id)
            partition = services.replicas.partitions.get((topic, fetch.partition))
            is_in_session = has_session(fetch)
            may_be_empty = fetch.max_wait_ms <= 0 and not is_in_session
            if partition is None or partition.is_offline:
                return None  # the handler answers with the error
            high_watermark = partition.log.offsets.high_watermark
            if high_watermark < offset or (high_watermark == offset and not may_be_empty):
                return None  # beyond the end, or it has to wait
            if is_in_session:
                in_session = services.sessions.find_only_dirty(fetch)
                if in_session is None:
                    return None
            if services.select_replica is not None:
                return None
            services.authorize_consumer(ctx, topic, log_denied=False)
            info = services.replicas.read(
                partition,
                FetchPosition(offset, fetch.current_leader_epoch, fetch.last_fetched_epoch),
                min(services.response_max_bytes(fetch.max_bytes), fetch.partition_max_bytes),
                self._committed if fetch.isolation_level else self._uncommitted,
                min_one_batch=True,
            )
        except (KafkaError, DivergingEpoch):
            return None
        if isinstance(info, DiskLookup):
            services.replicas.disk_lookups.drop(info)  # the handler may find the page in the page cache, and need none
            return None
        if info.aborted or (info.size < max(1, fetch.min_bytes) and not may_be_empty):
            return None
        partition.counts.bytes_out += info.size
        if in_session is not None:
            services.sessions.answer_single(in_session, fetch, info, ctx.mono_ms)
        return self._layout.encode_response(
            ctx.correlation_id,
            fetch,
            info.high_watermark,
            info.last_stable_offset,
            info.log_start_offset,
            info.size,
            info.regions,
            has_empty_list=info.aborted is not None,
        )
