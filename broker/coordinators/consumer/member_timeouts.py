"""Deadlines of the members of consumer groups: one for each, however often it is put off.

RULES    1. Putting a deadline off notes a later time; when the deadline comes it looks there and is set anew. One entry in
            the heap for each member, however often it beats.
         2. `over` must find out itself whether the member is still there.
NOT HERE What becomes of a member that is late (`consumer_group_heartbeat.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Host
from replication.timer_queue import Deadline

Decided = CoordinatorDecision[None] | None
Over = Callable[[str, str], Decided]
"""Called with group and member id."""


class _Life:
    __slots__ = ("deadline", "ends_at_mono_ms")

    def __init__(self, ends_at_mono_ms: int) -> None:
        self.ends_at_mono_ms = ends_at_mono_ms
        self.deadline: Deadline | None = None


class MemberDeadlines:
    """The deadlines of one kind of one shard's members."""

    def __init__(self, host: Host, over: Over) -> None:
        self._host = host
        self._over = over
        self._lives: dict[tuple[str, str], _Life] = {}

    def start(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """The member has so much time from now on."""
        key = group_id, member_id
        ends_at_mono_ms = self._host.mono_ms() + timeout_ms
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _Life(ends_at_mono_ms)
        elif life.deadline is not None and ends_at_mono_ms < life.deadline.at_mono_ms:
            life.deadline.cancel()
            life.deadline = None
        life.ends_at_mono_ms = ends_at_mono_ms
        if life.deadline is None:
            life.deadline = self._host.after(timeout_ms, lambda: self._look(key, life))

    def start_if_absent(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """The member has so much time, unless its time runs already."""
        if (group_id, member_id) not in self._lives:
            self.start(group_id, member_id, timeout_ms)

    def forget(self, group_id: str, member_id: str) -> None:
        """There is nothing to wait for any more."""
        life = self._lives.pop((group_id, member_id), None)
        if life is not None and life.deadline is not None:
            life.deadline.cancel()

    def close(self) -> None:
        """Forget all."""
        for group_id, member_id in list(self._lives):
            self.forget(group_id, member_id)

    def _look(self, key: tuple[str, str], life: _Life) -> Decided:
        left_ms = life.ends_at_mono_ms - self._host.mono_ms()
        if left_ms > 0:
            life.deadline = self._host.after(left_ms, lambda: self._look(key, life))
            return None
        del self._lives[key]
        return self._over(*key)
