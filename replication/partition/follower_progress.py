"""What a leader knows of its followers: up to where each holds the log, and when it last held all of it.

RULES    1. A follower holds all before the offset that it asks for.
         2. It was caught up when it asked for the log's end; and at its last fetch, when it has now all that there was then.
         3. Who was given all that there is asks for more with every request of its session, also where it does not say so
            again (KIP-227): it is caught up for as long as it goes on asking.
NOT HERE Who is in sync (`partition.py`).
"""

from __future__ import annotations

from typing import Final, Protocol

NO_OFFSET: Final = -1


class Asked(Protocol):
    """What a follower asks for."""

    @property
    def offset(self) -> int:
        """From where on."""

    @property
    def asked_mono_ms(self) -> int:
        """When it was asked for last, said again or not; a request that is being looked at does not count yet."""


class Follower:
    """What the leader knows of one other replica."""

    __slots__ = (
        "_asked", "_caught_up_mono_ms", "_last_fetch_end", "_last_look_mono_ms", "broker_epoch", "end_offset", "is_joining",
        "log_start_offset",
    )  # fmt: skip

    def __init__(self, last_caught_up_mono_ms: int) -> None:
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.broker_epoch = -1
        self.is_joining = False
        """Outside the ISR but close behind: the high watermark waits for it, or it would never catch up under load."""
        self._caught_up_mono_ms = last_caught_up_mono_ms
        self._asked: Asked | None = None
        self._last_fetch_end = NO_OFFSET
        self._last_look_mono_ms = 0

    def fetched(self, asked: Asked, leader_end: int, mono_ms: int) -> None:
        """It asked for an offset, so it holds all below; `leader_end` is where our log ended when it asked."""
        if asked.offset >= leader_end:
            caught_up_mono_ms = mono_ms
        elif asked.offset >= self._last_fetch_end:  # it has now all that there was when it asked last
            caught_up_mono_ms = self._last_fetch_mono_ms
        else:
            caught_up_mono_ms = 0
        self._caught_up_mono_ms = max(self.last_caught_up_mono_ms, caught_up_mono_ms)
        self.end_offset = asked.offset
        self._asked = asked
        self._last_fetch_end = leader_end
        self._last_look_mono_ms = mono_ms

    @property
    def last_caught_up_mono_ms(self) -> int:
        """When it last had all that there was."""
        if self.end_offset < self._last_fetch_end:
            return self._caught_up_mono_ms
        return max(self._caught_up_mono_ms, self._last_fetch_mono_ms)  # rule 3

    @property
    def _last_fetch_mono_ms(self) -> int:
        return (
            self._last_look_mono_ms if self._asked is None else max(self._last_look_mono_ms, self._asked.asked_mono_ms)
        )

    def is_caught_up(self, leader_end: int, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it was at the log's end at some time within the allowed lag."""
        return self.end_offset == leader_end or self.is_within(mono_ms, max_lag_ms)

    def is_within(self, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it need not be at the log's end now."""
        return mono_ms - self.last_caught_up_mono_ms <= max_lag_ms
