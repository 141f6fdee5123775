"""Which brokers live: what the active controller remembers of their heartbeats, and nobody else knows.

RULES    1. A session begins with the first heartbeat after a registration (and for who was active when this
            controller became the active one) and ends when nothing was heard for broker.session.timeout.ms.
         2. It belongs to one registration: a new epoch begins without one.
         3. Nothing of this is recorded; what follows from it (a broker fenced) is a decision like any other.
NOT HERE What a heartbeat means (`broker_heartbeats.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replication.timer_queue import Deadline, Deadlines

_NOTHING = -1


class Session:
    """What is remembered of one registration."""

    __slots__ = ("deadline", "epoch", "leaves_at", "metadata_offset", "registered_at")

    def __init__(self, epoch: int, registered_at: int) -> None:
        self.epoch = epoch
        self.registered_at = registered_at
        """Where its registration stands in the metadata log: who has read so far has caught up."""
        self.metadata_offset = _NOTHING
        """How far it has read the metadata."""
        self.leaves_at = _NOTHING
        """The offset of the decision that took it out of its partitions, while it is shutting down."""
        self.deadline: Deadline | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether it is in its controlled shutdown."""
        return self.leaves_at != _NOTHING

    def stays(self) -> None:
        """It is fenced, or never wanted to leave."""
        self.leaves_at = _NOTHING

    def leaves(self, offset: int) -> None:
        """It is shutting down since `offset`."""
        if not self.is_leaving:
            self.leaves_at = offset


class Sessions:
    """The sessions of all brokers; our own's never ends."""

    def __init__(self, deadlines: Deadlines, timeout_ms: int) -> None:
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms
        self._by_broker: dict[int, Session] = {}
        self.on_silence: Callable[[int], None] | None = None
        """Told of a broker that was not heard for too long."""

    def of(self, broker_id: int, epoch: int) -> Session:
        """What is remembered of a registration."""
        session = self._by_broker.get(broker_id)
        if session is None or session.epoch != epoch:
            return self.begin(broker_id, epoch, epoch)
        return session

    def begin(self, broker_id: int, epoch: int, registered_at: int) -> Session:
        """A broker registered; an older registration's session is over."""
        old = self._by_broker.get(broker_id)
        if old is not None and old.epoch == epoch:
            old.registered_at = registered_at
            return old
        if old is not None and old.deadline is not None:
            old.deadline.cancel()
        session = self._by_broker[broker_id] = Session(epoch, registered_at)
        return session

    def heard(self, broker_id: int, epoch: int, mono_ms: int | None) -> Session:
        """A broker lives; None: for as long as this process."""
        session = self.of(broker_id, epoch)
        if session.deadline is not None:
            session.deadline.cancel()
        if mono_ms is None:
            return session
        silence = partial(self._fell_silent, broker_id)
        session.deadline = self._deadlines.schedule(mono_ms + self._timeout_ms, silence)
        return session

    def end(self) -> None:
        """Another controller is active: it hears the brokers from now on."""
        for session in self._by_broker.values():
            if session.deadline is not None:
                session.deadline.cancel()
        self._by_broker.clear()

    def is_alive(self, broker_id: int, epoch: int) -> bool:
        """Whether a registration has a session."""
        session = self._by_broker.get(broker_id)
        return (
            session is not None
            and session.epoch == epoch
            and session.deadline is not None
            and session.deadline.is_pending
        )

    def _fell_silent(self, broker_id: int) -> None:
        if self.on_silence is not None:
            self.on_silence(broker_id)

    def lowest_offset(self, broker_ids: list[int]) -> int | None:
        """How far the slowest of some brokers has read the metadata; None: nobody else reads them."""
        offsets = [s.metadata_offset for b, s in self._by_broker.items() if b in broker_ids]
        return min(offsets, default=None)
