"""Broker sessions in the memory of the active controller (Kafka: BrokerHeartbeatTracker).

RULES    1. A session starts at the first heartbeat after a registration, or for active brokers when this controller becomes
            active. It expires after broker.session.timeout.ms without a heartbeat.
         2. A session belongs to one registration: a new broker epoch starts without one.
         3. Sessions are not stored; fencing after an expired session is a normal decision.
NOT HERE The handling of heartbeats (`broker_heartbeats.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from replication.cooperative_tasks import no_op
from replication.timer_queue import Timer, TimerQueue

_UNKNOWN_OFFSET = -1


@dataclass(slots=True, eq=False)
class BrokerHeartbeatState:
    """The state of one broker registration (Kafka: BrokerHeartbeatState)."""

    epoch: int
    registration_offset: int
    """The offset of the registration record; a broker that has read it is caught up."""
    metadata_offset: int = _UNKNOWN_OFFSET
    """The metadata offset of the last heartbeat."""
    shutdown_offset: int = _UNKNOWN_OFFSET
    """The offset of the decision that started the controlled shutdown (Kafka: controlledShutdownOffset)."""
    deadline: Timer | None = None

    @property
    def is_shutting_down(self) -> bool:
        """Whether the broker is in controlled shutdown."""
        return self.shutdown_offset != _UNKNOWN_OFFSET

    def cancel_shutdown(self) -> None:
        """End the controlled shutdown."""
        self.shutdown_offset = _UNKNOWN_OFFSET

    def begin_shutdown(self, offset: int) -> None:
        """Start the controlled shutdown at `offset`, unless it has started."""
        if not self.is_shutting_down:
            self.shutdown_offset = offset


class BrokerHeartbeatTracker:
    """The sessions of all brokers; the local broker's session does not expire."""

    def __init__(self, timers: TimerQueue, timeout_ms: int) -> None:
        self._timers = timers
        self._timeout_ms = timeout_ms
        self._states: dict[int, BrokerHeartbeatState] = {}
        self.on_session_expired: Callable[[int], None] = no_op
        """Called with the broker id when a session expires."""

    def state_of(self, broker_id: int, epoch: int) -> BrokerHeartbeatState:
        """The state of a registration; created if needed."""
        state = self._states.get(broker_id)
        if state is None or state.epoch != epoch:
            return self.register(broker_id, epoch, epoch)
        return state

    def register(self, broker_id: int, epoch: int, registration_offset: int) -> BrokerHeartbeatState:
        """Record a registration; a session of an earlier epoch ends."""
        previous = self._states.get(broker_id)
        if previous is not None and previous.epoch == epoch:
            previous.registration_offset = registration_offset
            return previous
        if previous is not None and previous.deadline is not None:
            previous.deadline.cancel()
        state = self._states[broker_id] = BrokerHeartbeatState(epoch, registration_offset)
        return state

    def touch(self, broker_id: int, epoch: int, mono_ms: int | None) -> BrokerHeartbeatState:
        """Renew a session; without a time the session does not expire."""
        state = self.state_of(broker_id, epoch)
        if state.deadline is not None:
            state.deadline.cancel()
        if mono_ms is None:
            return state
        on_timeout = partial(self.on_session_expired, broker_id)
        state.deadline = self._timers.schedule(mono_ms + self._timeout_ms, on_timeout)
        return state

    def clear(self) -> None:
        """End all sessions: another controller is active."""
        for state in self._states.values():
            if state.deadline is not None:
                state.deadline.cancel()
        self._states.clear()

    def has_valid_session(self, broker_id: int, epoch: int) -> bool:
        """Whether a registration has a session."""
        state = self._states.get(broker_id)
        return state is not None and state.epoch == epoch and state.deadline is not None and state.deadline.is_pending

    def lowest_metadata_offset(self, broker_ids: list[int]) -> int | None:
        """The lowest metadata offset of the given brokers; None if there is none."""
        offsets = [s.metadata_offset for b, s in self._states.items() if b in broker_ids]
        return min(offsets, default=None)
