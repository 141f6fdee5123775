"""What a leader knows of its followers: up to where each holds the log, and when it last held all of it.

RULES    1. A follower holds all before the offset that it asks for.
         2. It was caught up when it asked for the log's end; and at its last fetch, when it has now all that there was then.
NOT HERE Who is in sync (`partition.py`).
"""

from __future__ import annotations

from typing import Final

NO_OFFSET: Final = -1


class Follower:
    """What the leader knows of one other replica."""

    __slots__ = (
        "_last_fetch_end", "_last_fetch_mono_ms", "broker_epoch", "end_offset", "is_joining", "last_caught_up_mono_ms",
        "log_start_offset",
    )  # fmt: skip

    def __init__(self, last_caught_up_mono_ms: int) -> None:
        self.end_offset = NO_OFFSET
        self.last_caught_up_mono_ms = last_caught_up_mono_ms
        self.log_start_offset = NO_OFFSET
        self.broker_epoch = -1
        self.is_joining = False
        """Outside the ISR but close behind: the high watermark waits for it, or it would never catch up under load."""
        self._last_fetch_end = NO_OFFSET
        self._last_fetch_mono_ms = 0

    def fetched(self, offset: int, leader_end: int, mono_ms: int) -> None:
        """It asked for `offset`, so it holds all below; `leader_end` is where our log ended when it asked."""
        if offset >= leader_end:
            caught_up_mono_ms = mono_ms
        elif offset >= self._last_fetch_end:  # it has now all that there was when it asked last
            caught_up_mono_ms = self._last_fetch_mono_ms
        else:
            caught_up_mono_ms = self.last_caught_up_mono_ms
        self.last_caught_up_mono_ms = max(self.last_caught_up_mono_ms, caught_up_mono_ms)
        self.end_offset = offset
        self._last_fetch_end = leader_end
        self._last_fetch_mono_ms = mono_ms

    def is_caught_up(self, leader_end: int, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it was at the log's end at some time within the allowed lag."""
        return self.end_offset == leader_end or self.is_within(mono_ms, max_lag_ms)

    def is_within(self, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it need not be at the log's end now."""
        return mono_ms - self.last_caught_up_mono_ms <= max_lag_ms
