"""Decides whether the next round of a group commit waits for clients whose flush has just completed (PostgreSQL: commit_delay).

RULES    1. Clients that wait for an acknowledgement before they send again form two groups if the next round always starts at
            once: one is flushed while the other one is pending, and each round has half of the requests. If the next round
            waits until the acknowledged clients have sent again, it has all of them.
         2. Waiting is useful if it is shorter than the time that it saves: the flushes of the last round would otherwise wait
            for a whole round more. Weighted by their number, that is the limit.
         3. Whether they send again soon is not known: a wait that exceeded the limit, or ended without them, makes the
            next rounds start at once, twice as many after each failure in sequence.
         4. Nothing is awaited if a round is full already, if there is one client, or if a round takes less than MIN_ROUND_S.
NOT HERE The rounds (group_commit.py). Why: docs/decisions/0022-group-commit.md
"""

from __future__ import annotations

from typing import Final

from storage.io.aio_fsync import CAPACITY

MIN_ROUND_S: Final = 0.0003
"""A client needs about as long to send again."""
MAX_SKIPPED: Final = 64


class CommitDelay:
    """What the rounds of one log directory have shown."""

    def __init__(self) -> None:
        self._limit_s = 0.0
        self._failures = 0
        self._skipped_rounds = 0

    def expected(self, completed: int, pending: int, round_s: float) -> int:
        """The number of pending flushes with which the next round starts; 0: it starts at once.

        The last round had `completed` flushes and took `round_s`; `pending` flushes were submitted meanwhile.
        """
        if completed + pending < 2 or pending >= CAPACITY or round_s < MIN_ROUND_S:
            return 0
        if self._skipped_rounds:
            self._skipped_rounds -= 1
            return 0
        self._limit_s = round_s * completed / (completed + pending)
        return completed + pending

    def ended(self, waited_s: float, *, is_complete: bool) -> None:
        """A wait has ended; `is_complete`: the expected flushes are pending."""
        self._failures = 0 if is_complete and waited_s < self._limit_s else self._failures + 1
        self._skipped_rounds = min(2**self._failures, MAX_SKIPPED) if self._failures else 0
