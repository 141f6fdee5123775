"""Probes of this node over HTTP: is it alive, is it ready, may it be stopped?

FORMAT   JSON: {"status": "ok"} or {"status": "…", "reason": "…"}; `/safe-to-stop` names partitions.
RULES    1. `/healthz` is 200 while the event loop runs.
         2. `/readyz` is 200 while the node is active in the metadata: it serves clients, and is neither fenced nor stopping.
         3. `/safe-to-stop` is 503 if a partition would have fewer in-sync replicas than min.insync.replicas without this node,
            or none at all, and lists the first `MAX_LISTED`. A partition whose in-sync replicas do not include this
            node does not matter.
         4. A probe is a generator, which pauses after `PARTITIONS_PER_STEP`.
NOT HERE HTTP (`page.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from replication.metadata.image import MetadataImage, PartitionState

MAX_LISTED: Final = 100
PARTITIONS_PER_STEP: Final = 2_000

Answer = tuple[int, str]
Probe = Callable[[], Generator[None, None, Answer]]


def _answer(code: int, **body: Any) -> Answer:
    return code, json.dumps(body) + "\n"


def is_alive() -> Generator[None, None, Answer]:
    """The probe of `/healthz`."""
    yield
    return _answer(200, status="ok")


@dataclass
class NodeProbes:
    """The probes that look at the metadata."""

    node_id: int
    image: Callable[[], MetadataImage]
    min_insync_replicas: Callable[[str], int]
    """Of a topic."""
    is_broker: bool
    is_started: Callable[[], bool] = field(default=lambda: False)
    """Whether the node accepts clients, and is not stopping."""

    def is_ready(self) -> Generator[None, None, Answer]:
        """The probe of `/readyz`."""
        yield
        reason = self._unready_reason()
        return _answer(200, status="ok") if reason is None else _answer(503, status="not ready", reason=reason)

    def _unready_reason(self) -> str | None:
        if not self.is_started():
            return "the node is starting or stopping"
        if not self.is_broker:
            return None
        broker = self.image().brokers.get(self.node_id)
        if broker is None:
            return "the broker is not registered"
        return "the broker is fenced" if broker.is_fenced else None

    def is_safe_to_stop(self) -> Generator[None, None, Answer]:
        """The probe of `/safe-to-stop`."""
        unsafe: list[dict[str, Any]] = []
        count = looked_at = 0
        for topic in self.image().topics_by_id.values():
            min_isr = self.min_insync_replicas(topic.name)
            for index, state in topic.partitions.items():
                if self._is_needed(state, min_isr):
                    count += 1
                    if len(unsafe) < MAX_LISTED:
                        unsafe.append(
                            {
                                "topic": topic.name,
                                "partition": index,
                                "in_sync": list(state.isr),
                                "min_insync_replicas": min(min_isr, len(state.replicas)),
                            }
                        )
                looked_at += 1
                if looked_at % PARTITIONS_PER_STEP == 0:
                    yield
        if not count:
            return _answer(200, status="safe", partitions=[], count=0)
        return _answer(503, status="unsafe", partitions=unsafe, count=count)

    def _is_needed(self, state: PartitionState, min_isr: int) -> bool:
        """Whether the partition would be under its minimum without this node."""
        return self.node_id in state.isr and len(state.isr) - 1 < max(min(min_isr, len(state.replicas)), 1)
