"""The file descriptors that the listeners of a node have for connections, so that log files keep theirs.

RULES    1. All listeners together have at most `limit`: held sockets and TLS handshakes count as connections.
         2. Each listener keeps a few for itself: clients that use up the others do not keep other nodes out.
NOT HERE How many there are (`broker/process/resource_limits.py`), limits that are settings (`broker/quotas/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

_KEPT_SHARE: Final = 4
"""The listeners that have no connection keep less than this part of the limit together."""


class HasDescriptors(Protocol):
    """A listener."""

    @property
    def descriptors(self) -> int:
        """How many its connections have."""


class DescriptorShare:
    """The descriptors that some listeners share."""

    def __init__(self, limit: int, listeners: Sequence[HasDescriptors]) -> None:
        self.limit = limit
        self._listeners = listeners
        self._kept = limit // (_KEPT_SHARE * max(len(listeners), 1))

    def is_used_up(self, listener: HasDescriptors) -> bool:
        """Whether a listener may have no more connections."""
        others = [other.descriptors for other in self._listeners if other is not listener]
        return listener.descriptors + sum(max(count, self._kept) for count in others) >= self.limit
