"""The short cut for the Fetch that consumers send most: one partition, and there are records to give.

RULES    1. It answers as `fetch.py` does, byte for byte and by the same means: sessions, authorizer, limits, ReplicaManager.
         2. What is unusual is the handler's: then it gives None, and nothing has changed. Unusual are another shape
            (`protocol/single_partition_codec.py`), a session that begins or ends or may have news of other partitions, an error of any
            kind, an aborted transaction, nothing to give, less than is waited for, and what the disk must be asked for.
NOT HERE What is right and wrong about a Fetch, and waiting (`fetch.py`). Why there are two ways:
         docs/decisions/0015-a-short-cut-for-one-partition.md
"""

from __future__ import annotations

from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchSession
from broker.handlers.router import RequestContext, Shortcut, Shortcuts
from broker.security.authorizer import Operation, Resource
from protocol.errors import KafkaError
from protocol.framing import Part
from protocol.single_partition_codec import FIRST_FETCH_VERSION, FetchLayout, FetchOfOne
from replication.partition.partition import Diverged, FetchPosition
from storage.io.would_block import WouldBlock
from storage.log.log import Isolation, ReadInfo


class FetchShortcut:
    """Answers one version of Fetch."""

    def __init__(self, handler: FetchHandler, version: int) -> None:
        self._handler = handler
        self._layout = FetchLayout(version)
        self._uncommitted = handler.consumer(Isolation.HIGH_WATERMARK, version)
        self._committed = handler.consumer(Isolation.LAST_STABLE, version)

    def answer(self, ctx: RequestContext, frame: bytearray, position: int) -> list[Part] | None:
        """The answer to the request that begins at `position`; None where it is unusual."""
        asked = self._layout.read(frame, position)
        if asked is None:
            return None
        topic, topic_id, index, offset, leader_epoch, fetched_epoch, partition_max_bytes, max_bytes, *_ = asked
        handler = self._handler
        replicas = handler.replicas
        if topic_id:
            known = replicas.image.topics_by_id.get(topic_id)
            if known is None:
                return None
            topic = known.name
        held = replicas.partitions.get((topic, index))
        if held is None or held.high_watermark <= offset:  # not here, or it will have to wait
            return None
        session = None
        if asked.session_epoch != FINAL_EPOCH:
            session = self._session_of(asked)
            if session is None:
                return None
        elif asked.session_id != NO_SESSION:
            return None
        if handler.select_replica is not None or not handler.authorizer.authorize(
            ctx.connection.principal, Operation.READ, Resource.TOPIC, topic
        ):
            return None
        most = min(max_bytes, handler.max_bytes)
        reader = self._committed if asked.isolation_level else self._uncommitted
        try:
            info = replicas.read(
                topic,
                index,
                FetchPosition(offset, leader_epoch, fetched_epoch),
                min(most, partition_max_bytes),
                reader,
                min_one_batch=True,
            )
        except (KafkaError, Diverged, WouldBlock):
            return None
        regions, size, high_watermark, stable, start, _, aborted = info
        if not size or aborted or (size < min(asked.min_bytes, most) and asked.max_wait_ms > 0):
            return None
        if session is not None:
            self._note(session, asked, info, ctx.mono_ms)
        bounds = high_watermark, stable, start
        return self._layout.answer(ctx.correlation_id, asked, bounds, size, regions, has_list=aborted is not None)

    def _session_of(self, asked: FetchOfOne) -> FetchSession | None:
        """The session that goes on with this partition alone."""
        session = self._handler.sessions.find(asked.session_id)
        if session is None or session.epoch != asked.session_epoch or session.waiter is not None:
            return None
        partition = session.partitions.get((asked.topic_id or asked.topic, asked.partition))
        if partition is None or partition.topic is None:
            return None
        dirty = session.dirty
        return session if not dirty or (len(dirty) == 1 and partition in dirty) else None

    def _note(self, session: FetchSession, asked: FetchOfOne, info: ReadInfo, mono_ms: int) -> None:
        """Remember in the session what was asked and told; there may be more, so the partition stays dirty."""
        partition = session.partitions[asked.topic_id or asked.topic, asked.partition]
        partition.ask(asked)
        partition.tell(info.high_watermark, info.log_start_offset)
        session.dirty[partition] = None
        self._handler.sessions.advance(session, mono_ms)


def shortcuts(handler: FetchHandler) -> Shortcuts:
    """The short cut of each version that has one."""

    def shortcut(version: int) -> Shortcut | None:
        return FetchShortcut(handler, version).answer if version >= FIRST_FETCH_VERSION else None

    return shortcut
