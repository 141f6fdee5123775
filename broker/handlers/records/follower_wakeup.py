"""Completes waiting follower fetches when this broker becomes leader of a partition.

RULES    1. A follower waits with the partitions that it knew before. Its fetch is completed after it has likely applied the
            same metadata, and once more for slow followers. Else the first acks=all append would wait for
            replica.fetch.wait.max.ms.
         2. Partitions that change their leader within FIRST_WAKEUP_MS share one wakeup.
NOT HERE The waiting fetches (`fetch_sessions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.handlers.records.fetch_sessions import FetchSessions
from replication.partition.partition import Partition
from replication.timer_queue import TimerQueue

FIRST_WAKEUP_MS: Final = 20
SECOND_WAKEUP_MS: Final = 100


class FollowerWakeup:
    """Schedules the wakeups of one broker."""

    def __init__(self, sessions: FetchSessions, timers: TimerQueue, mono_ms: Callable[[], int]) -> None:
        self._sessions = sessions
        self._timers = timers
        self._mono_ms = mono_ms
        self._is_scheduled = False

    def on_leadership_change(self, partition: Partition) -> None:
        """Schedule wakeups if the partition is led here now and has followers."""
        if partition.is_leader and partition.followers and not self._is_scheduled:
            self._is_scheduled = True
            now_ms = self._mono_ms()
            self._timers.schedule(now_ms + FIRST_WAKEUP_MS, self._wake)
            self._timers.schedule(now_ms + SECOND_WAKEUP_MS, self._sessions.complete_follower_fetches)

    def _wake(self) -> None:
        self._is_scheduled = False
        self._sessions.complete_follower_fetches()
