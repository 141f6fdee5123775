"""The fast path of a Fetch of several partitions: answers what is in memory, without messages.

RULES    1. The response is that of the handler (`fetch.py`), byte for byte. The fast path returns None before any change for
            any other request: another layout, a new session, an error of any kind, an aborted transaction, one that has to
            wait, or data outside the page cache (docs/decisions/0015-fast-path-for-single-partition-requests.md).
         2. Of a session, it answers requests that name all dirty partitions and none that is new or has another leader
            epoch, if no limit leaves one out.
         3. A request that may wait reads nothing while all its partitions are at their ends.
NOT HERE The layout of the request (`protocol/frame_codecs/fetch_codec.py`), one partition (`fetch_fast_path.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import FetchedPartition, has_session
from broker.handlers.router import RequestContext
from protocol.errors import KafkaError
from protocol.frame_codecs.fetch_codec import FetchedRecords, FetchTopicsLayout, PartitionFetch, TopicFetch, TopicsFetch
from protocol.framing import Part
from replication.partition.follower_progress import DivergingEpoch, FetchPosition
from replication.partition.partition import Partition
from storage.io.disk_lookup import DiskLookup
from storage.log.log_reader import Isolation, ReadInfo

_Wanted = tuple[TopicFetch, PartitionFetch, Partition]


class FetchTopicsFastPath:
    """The fast path of one version."""

    __slots__ = ("_committed", "_layout", "_services", "_uncommitted")

    def __init__(self, services: FetchServices, version: int) -> None:
        self._services = services
        self._layout = FetchTopicsLayout(version)
        self._uncommitted = services.consumer(Isolation.HIGH_WATERMARK, version)
        self._committed = services.consumer(Isolation.LAST_STABLE, version)

    def answer(self, ctx: RequestContext, frame: bytearray, position: int) -> list[Part] | None:
        """The response to the request at `position`, or None."""
        fetch = self._layout.decode_request(frame, position)
        if fetch is None or self._services.select_replica is not None or self._services.replicas.at_file_limit():
            return None
        try:
            results = self._read_session(ctx, fetch) if has_session(fetch) else self._read_sessionless(ctx, fetch)
        except (KafkaError, DivergingEpoch):
            return None
        if results is None:
            return None
        return self._layout.encode_response(
            ctx.correlation_id, fetch.session_id, results, has_empty_lists=fetch.isolation_level != 0
        )

    def _read_sessionless(self, ctx: RequestContext, fetch: TopicsFetch) -> list[FetchedRecords] | None:
        """The results of all partitions; None if the handler has to answer. Raises KafkaError and DivergingEpoch."""
        wanted = self._find(ctx, fetch)
        infos = None if wanted is None else self._read(fetch, wanted, may_leave_out=True)
        if wanted is None or infos is None:
            return None
        return [(topic, part[0], info) for (topic, part, _), info in zip(wanted, infos, strict=True)]

    def _read_session(self, ctx: RequestContext, fetch: TopicsFetch) -> list[FetchedRecords] | None:
        """The results of the partitions that have changed; None if the handler has to answer (rule 2).

        Raises KafkaError and DivergingEpoch.
        """
        sessions = self._services.sessions
        session = sessions.find_idle(fetch)
        wanted = None if session is None else self._find(ctx, fetch)
        if session is None or wanted is None:
            return None
        known: dict[FetchedPartition, _Wanted] = {}
        for one in wanted:
            topic, part, _ = one
            partition = session.partitions.get((topic.name or topic.topic_id, part[0]))
            if partition is None or partition.topic is None or partition.leader_epoch != part[1]:
                return None
            known[partition] = one
        if not session.dirty.keys() <= known.keys():
            return None
        ordered = {partition: known[partition] for partition in session.dirty} | known
        infos = self._read(fetch, ordered.values(), may_leave_out=False)
        if infos is None:
            return None
        results: list[FetchedRecords] = []
        read: dict[FetchedPartition, tuple[PartitionFetch, ReadInfo]] = {}
        for (partition, (topic, part, _)), info in zip(ordered.items(), infos, strict=True):
            read[partition] = part, info
            if info.size or partition.has_changed(info.high_watermark, info.log_start_offset):
                results.append((topic, part[0], info))
        sessions.answer_several(session, read, ctx.mono_ms)
        return results

    def _find(self, ctx: RequestContext, fetch: TopicsFetch) -> list[_Wanted] | None:
        """The partitions of a request; None if one is not online here, or it has to wait (rule 3). Raises KafkaError."""
        services = self._services
        by_name = services.replicas.partitions
        found: list[_Wanted] = []
        has_records = fetch.max_wait_ms <= 0
        for topic in fetch.topics:
            name = topic.name or services.topic_name(topic.topic_id)
            services.authorize_consumer(ctx, name, partial(len, topic.partitions), log_denied=False)
            for part in topic.partitions:
                partition = by_name.get((name, part[0]))
                if partition is None or partition.is_offline:
                    return None
                found.append((topic, part, partition))
                has_records = has_records or part[2] < partition.log.offsets.high_watermark
        return found if has_records else None

    def _read(self, fetch: TopicsFetch, wanted: Collection[_Wanted], *, may_leave_out: bool) -> list[ReadInfo] | None:
        """Reads partitions in this order; None if the handler has to answer, or a limit leaves one out that must not be.

        Raises KafkaError and DivergingEpoch.
        """
        replicas, infos = self._services.replicas, list[ReadInfo]()
        reader = self._committed if fetch.isolation_level else self._uncommitted
        left = max_bytes = self._services.response_max_bytes(fetch.max_bytes)
        for _, (_, leader_epoch, offset, fetched_epoch, partition_max_bytes), partition in wanted:
            if left <= 0 and not may_leave_out:
                return None
            info = replicas.read(
                partition,
                FetchPosition(offset, leader_epoch, fetched_epoch),
                min(left, partition_max_bytes),
                reader,
                min_one_batch=left == max_bytes,
            )
            if isinstance(info, DiskLookup):
                replicas.disk_lookups.drop(info)  # the handler may find the page in the page cache, and need none
                return None
            size = info.size
            if info.aborted or not (size or may_leave_out or offset >= info.limit(reader.isolation)):
                return None
            infos.append(info)
            left -= size
        if fetch.max_wait_ms > 0 and max_bytes - left < min(fetch.min_bytes, max_bytes):
            return None
        for (_, _, partition), info in zip(wanted, infos, strict=True):
            partition.counts.bytes_out += info.size
        return infos
