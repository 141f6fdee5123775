"""How long a member lives without a word: session deadlines that heartbeats do not move.

RULES    1. A heartbeat notes until when the member lives; its deadline, when it comes, looks there and is set anew.
            One entry in the heap for each member, however often it beats.
         2. A member that waits for an answer cannot send anything: its silence is no fault then. Whoever answers it
            begins its session anew.
NOT HERE What becomes of a member whose session is over (`classic_protocol.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordinators.classic.classic_group import ClassicGroup, Member, State
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host

Over = Callable[[ClassicGroup, Member], "CoordinatorDecision[None] | None"]


class Sessions:
    """The sessions of one shard's members; `over` decides what happens at the end of one."""

    def __init__(self, host: Host, over: Over) -> None:
        self._host = host
        self._over = over

    def beat(self, group: ClassicGroup, member: Member, mono_ms: int) -> None:
        """The member gave a sign of life."""
        deadline = member.deadline
        member.expires_at_mono_ms = mono_ms + member.session_timeout_ms
        if deadline is None or deadline.callback is None:
            self.start(group, member, member.session_timeout_ms)

    def start(self, group: ClassicGroup, member: Member, timeout_ms: int) -> None:
        """The member lives so much longer, counted from now."""
        at_mono_ms = member.expires_at_mono_ms = self._host.mono_ms() + timeout_ms
        deadline = member.deadline
        if deadline is not None and deadline.is_pending:
            if deadline.at_mono_ms <= at_mono_ms:
                return
            deadline.cancel()
        member.deadline = self._host.after(timeout_ms, lambda: self._look(group, member))

    def _look(self, group: ClassicGroup, member: Member) -> CoordinatorDecision[None] | None:
        if group.members.get(member.member_id) is not member or group.state is State.DEAD:
            return None
        left_ms = member.expires_at_mono_ms - self._host.mono_ms()
        if left_ms > 0:
            member.deadline = self._host.after(left_ms, lambda: self._look(group, member))
            return None
        return None if member.may_miss_heartbeats else self._over(group, member)
