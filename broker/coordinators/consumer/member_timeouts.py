"""Timeouts of consumer group members, one per member and kind.

RULES    1. Restarting a timeout only stores the new time. The timer checks it when it fires and is scheduled again: one
            heap entry per member, however often it sends heartbeats.
         2. `on_timeout` checks whether the member still exists.
NOT HERE The action after a timeout (`consumer_group_heartbeat.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, ShardContext
from replication.timer_queue import Timer

TimeoutDecision = CoordinatorDecision[None] | None
OnTimeout = Callable[[str, str], TimeoutDecision]
"""Called with group id and member id."""


@dataclass(slots=True, eq=False)
class _Timeout:
    expires_at_mono_ms: int
    deadline: Timer | None = None


class MemberTimeouts:
    """The timeouts of one kind for one shard."""

    def __init__(self, context: ShardContext, on_timeout: OnTimeout) -> None:
        self._context = context
        self._on_timeout = on_timeout
        self._timeouts: dict[tuple[str, str], _Timeout] = {}

    def start(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Start or restart a timeout."""
        key = group_id, member_id
        expires_at_mono_ms = self._context.mono_ms() + timeout_ms
        timeout = self._timeouts.get(key)
        if timeout is None:
            timeout = self._timeouts[key] = _Timeout(expires_at_mono_ms)
        elif timeout.deadline is not None and expires_at_mono_ms < timeout.deadline.at_mono_ms:
            timeout.deadline.cancel()
            timeout.deadline = None
        timeout.expires_at_mono_ms = expires_at_mono_ms
        if timeout.deadline is None:
            timeout.deadline = self._context.schedule(timeout_ms, lambda: self._on_deadline(key, timeout))

    def start_if_absent(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Start a timeout, unless it is running."""
        if (group_id, member_id) not in self._timeouts:
            self.start(group_id, member_id, timeout_ms)

    def cancel(self, group_id: str, member_id: str) -> None:
        """Cancel a timeout."""
        timeout = self._timeouts.pop((group_id, member_id), None)
        if timeout is not None and timeout.deadline is not None:
            timeout.deadline.cancel()

    def close(self) -> None:
        """Cancel all timeouts."""
        for group_id, member_id in list(self._timeouts):
            self.cancel(group_id, member_id)

    def _on_deadline(self, key: tuple[str, str], timeout: _Timeout) -> TimeoutDecision:
        left_ms = timeout.expires_at_mono_ms - self._context.mono_ms()
        if left_ms > 0:
            timeout.deadline = self._context.schedule(left_ms, lambda: self._on_deadline(key, timeout))
            return None
        del self._timeouts[key]
        return self._on_timeout(*key)
