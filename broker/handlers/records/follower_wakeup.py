"""Has followers ask anew when this broker begins to lead: their Fetches may wait for records of what was led before.

RULES    1. They are answered a moment later, when they have read the same metadata, and once more for those that are slow:
            else the first records with acks=all would wait for as long as a Fetch does (replica.fetch.wait.max.ms).
         2. Many partitions that are led at the same time are one reason to call.
NOT HERE Who waits (`fetch_sessions.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.handlers.records.fetch_sessions import FetchSessions
from replication.partition.partition import Partition
from replication.timer_queue import Deadlines

SOON_MS: Final = 20
LATE_MS: Final = 100


class FollowerCalls:
    """The calls of one broker."""

    def __init__(self, sessions: FetchSessions, deadlines: Deadlines, mono_ms: Callable[[], int]) -> None:
        self._sessions = sessions
        self._deadlines = deadlines
        self._mono_ms = mono_ms
        self._is_about_to_call = False

    def led(self, partition: Partition) -> None:
        """A partition is led here, or not any more."""
        if partition.is_leader and partition.followers and not self._is_about_to_call:
            self._is_about_to_call = True
            now_ms = self._mono_ms()
            self._deadlines.schedule(now_ms + SOON_MS, self._call)
            self._deadlines.schedule(now_ms + LATE_MS, self._sessions.call_followers)

    def _call(self) -> None:
        self._is_about_to_call = False
        self._sessions.call_followers()
