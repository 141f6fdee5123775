"""Session timeouts of classic members.

RULES    1. A heartbeat only stores the new expiry time. The timer checks it when it fires and is scheduled again:
            one heap entry per member, however often it sends heartbeats.
         2. A member that waits for a JoinGroup or SyncGroup response does not expire. Its session restarts
            with the response.
NOT HERE The removal of an expired member (`classic_protocol.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordinators.classic.classic_group import ClassicGroup, Member, State
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, ShardContext

OnTimeout = Callable[[ClassicGroup, Member], "CoordinatorDecision[None] | None"]


class HeartbeatTimeouts:
    """The session timeouts of one shard's members; `on_timeout` decides what happens."""

    def __init__(self, context: ShardContext, on_timeout: OnTimeout) -> None:
        self._context = context
        self._on_timeout = on_timeout

    def on_heartbeat(self, group: ClassicGroup, member: Member, mono_ms: int) -> None:
        """The member sent a heartbeat or a commit."""
        deadline = member.deadline
        member.expires_at_mono_ms = mono_ms + member.session_timeout_ms
        if deadline is None or deadline.callback is None:
            self.restart(group, member, member.session_timeout_ms)

    def restart(self, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        """Restart the session with this timeout."""
        at_mono_ms = member.expires_at_mono_ms = self._context.mono_ms() + timeout_ms
        deadline = member.deadline
        if deadline is not None and deadline.is_pending:
            if deadline.at_mono_ms <= at_mono_ms:
                return
            deadline.cancel()
        member.deadline = self._context.schedule(timeout_ms, lambda: self._on_deadline(group, member))

    def _on_deadline(self, group: ClassicGroup, member: Member) -> CoordinatorDecision[None] | None:
        if group.members.get(member.member_id) is not member or group.state is State.DEAD:
            return None
        left_ms = member.expires_at_mono_ms - self._context.mono_ms()
        if left_ms > 0:
            member.deadline = self._context.schedule(left_ms, lambda: self._on_deadline(group, member))
            return None
        return None if member.has_satisfied_heartbeat else self._on_timeout(group, member)
