"""The short cut for the Produce that producers send most: one batch for one partition.

RULES    1. It answers as `produce.py` does, byte for byte and by the same means: authorizer, ReplicaManager.
         2. What is unusual is the handler's: then it gives None, and nothing has happened. Unusual are another shape
            (`protocol/one_partition.py`), acks=0, a transactional batch, an internal topic, and who may not write.
         3. Once the batch is handed in there is no way back: an error, and an append that has to wait, are answered by
            the handler's own means (`ProduceHandler.adopt`).
NOT HERE What is right and wrong about a Produce (`produce.py`). Why there are two ways:
         docs/decisions/0015-a-short-cut-for-one-partition.md
"""

from __future__ import annotations

from broker.handlers.produce import (
    ATTRIBUTES_LOW_BYTE,
    INTERNAL_TOPICS,
    Outcome,
    ProduceHandler,
)
from broker.handlers.router import Pending, RequestContext, Shortcut, Shortcuts
from broker.security.authorizer import Operation, Resource
from protocol.framing import Part
from protocol.messages.produce_fetch import ProduceResponse
from protocol.one_partition import FIRST_PRODUCE_VERSION, ProduceLayout
from protocol.records import BATCH_OVERHEAD, TRANSACTIONAL_BIT
from replication.partition import ACKS_ALL, ACKS_LEADER


class ProduceShortcut:
    """Answers one version of Produce."""

    def __init__(self, handler: ProduceHandler, version: int) -> None:
        self._handler = handler
        self._layout = ProduceLayout(version)

    def answer(
        self, ctx: RequestContext, frame: bytearray, position: int
    ) -> list[Part] | ProduceResponse | Pending | None:
        """The answer to the request that begins at `position`; None where it is unusual."""
        asked = self._layout.read(frame, position)
        if asked is None:
            return None
        topic, topic_id, index, acks, timeout_ms, records, _ = asked
        if (
            acks not in (ACKS_LEADER, ACKS_ALL)
            or len(records) < BATCH_OVERHEAD
            or records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT
        ):
            return None
        handler = self._handler
        if topic_id:
            known = handler.replicas.image.topics_by_id.get(topic_id)
            if known is None:
                return None
            topic = known.name
        if topic in INTERNAL_TOPICS or not handler.authorizer.authorize(
            ctx.connection.principal, Operation.WRITE, Resource.TOPIC, topic
        ):
            return None
        outcome = Outcome()
        handler.replicas.append(topic, index, records, acks=acks, wall_ms=ctx.wall_ms, done=outcome)
        if outcome.ended is not None:
            _, info, _ = outcome.ended
            if info is not None:  # the records are as safe as wanted
                return self._layout.answer(
                    ctx.correlation_id, asked, info.base_offset, info.log_append_time_ms, info.log_start_offset
                )
        return handler.adopt(ctx, topic, index, topic_id, acks, timeout_ms, outcome)


def shortcuts(handler: ProduceHandler) -> Shortcuts:
    """The short cut of each version that has one."""

    def shortcut(version: int) -> Shortcut | None:
        return ProduceShortcut(handler, version).answer if version >= FIRST_PRODUCE_VERSION else None

    return shortcut
