"""What a leader knows of a follower: its log end offset, and when it last held the whole log.

RULES    1. A follower holds all records before the offset that it requests.
         2. It was caught up when it requested the log end offset; and at its previous fetch, if it now holds everything up to
            the log end offset of that time.
         3. A follower that has everything stays caught up while requests of its fetch session arrive, even if they do not name
            the partition again (KIP-227).
         4. A request of an earlier session that arrives late replaces the position. The next request of the present session
            restores it, although it does not name the partition.
NOT HERE Which followers are in sync (`partition.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


class FetchPosition:
    """What a fetch requests of one partition: an offset, and the reader's view of the leader's epochs."""

    __slots__ = ("last_fetched_epoch", "leader_epoch", "offset")
    log_start_offset: int = NO_OFFSET
    """The follower's log start offset; only `FetchedPartition` has one."""

    def __init__(self, offset: int, leader_epoch: int = NO_EPOCH, last_fetched_epoch: int = NO_EPOCH) -> None:
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch

    @property
    def requested_mono_ms(self) -> int:
        """When this position was last requested, explicitly or as part of the session; only `FetchedPartition` knows.

        A request that is being processed does not count yet.
        """
        return 0

    def on_superseded(self) -> None:
        """Another session of the follower has requested the partition; see `FetchedPartition`."""


class DivergingEpoch(Exception):
    """The reader's log diverges; `offsets` are high watermark, last stable offset and log start offset of this log.

    `epoch` is the last one in common, `end_offset` its end in this log.
    """

    def __init__(self, epoch: int, end_offset: int, offsets: tuple[int, int, int]) -> None:
        super().__init__(epoch, end_offset)
        self.epoch = epoch
        self.end_offset = end_offset
        self.offsets = offsets


@dataclass(slots=True, eq=False)
class FollowerProgress:
    """The fetch state of one follower."""

    _caught_up_mono_ms: int
    end_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    broker_epoch: int = -1
    is_joining: bool = False
    """Outside the ISR but close to the log end: the high watermark waits for it so that it can catch up."""
    _position: FetchPosition | None = None
    _last_fetch_end: int = NO_OFFSET
    _last_update_mono_ms: int = 0

    def update(self, position: FetchPosition, leader_end: int, mono_ms: int) -> None:
        """Record a fetch from `position`; `leader_end` was the leader's log end offset."""
        if position.offset >= leader_end:
            caught_up_mono_ms = mono_ms
        elif position.offset >= self._last_fetch_end:  # it holds everything up to the log end of its previous fetch
            caught_up_mono_ms = self._last_fetch_mono_ms
        else:
            caught_up_mono_ms = 0
        self._caught_up_mono_ms = max(self.last_caught_up_mono_ms, caught_up_mono_ms)
        self.end_offset = position.offset
        if self._position is not None and self._position is not position:
            self._position.on_superseded()  # rule 4
        self._position = position
        self._last_fetch_end = leader_end
        self._last_update_mono_ms = mono_ms

    @property
    def last_caught_up_mono_ms(self) -> int:
        """When it last held the whole log."""
        if self.end_offset < self._last_fetch_end:
            return self._caught_up_mono_ms
        return max(self._caught_up_mono_ms, self._last_fetch_mono_ms)  # rule 3

    @property
    def _last_fetch_mono_ms(self) -> int:
        last_ms, position = self._last_update_mono_ms, self._position
        return last_ms if position is None else max(last_ms, position.requested_mono_ms)

    def is_caught_up(self, leader_end: int, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it reached the log end within the allowed lag."""
        return self.end_offset == leader_end or self.is_within_lag(mono_ms, max_lag_ms)

    def is_within_lag(self, mono_ms: int, max_lag_ms: int) -> bool:
        """Whether it was caught up within the allowed lag; it need not be at the log end now."""
        return mono_ms - self.last_caught_up_mono_ms <= max_lag_ms
