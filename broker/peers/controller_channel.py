"""The way from this node to the active controller, which may be in this process or on another node.

RULES    1. What is asked is asked again until an active controller answers: nobody knows one during an election, and who was
            active may not be any more (NOT_CONTROLLER).
         2. Requests leave in their order as long as the controller stays the same.
         3. The controller of this process is asked by a call.
NOT HERE Who leads (`replication/metadata_log/kraft_replica.py`), connections (`network/peer.py`), what the controller decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from protocol.schema import Message
from replication.controller.error_responses import is_not_controller
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import Publisher
from replication.metadata_log.kraft_replica import Clock
from replication.timer_queue import Deadlines

_RETRY_MS: Final = 50

Reply = Callable[[Any], None]
Ask = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Asks another node, by its id; None is the answer that did not come."""


class Decider(Protocol):
    """A controller."""

    def submit(self, request: Message, *, wall_ms: int, reply: Reply) -> None:
        """Decide on a request; `reply` gets the response when it is committed."""


class _Waiting(NamedTuple):
    """What is to be asked."""

    request: Message
    reply: Reply


class ControllerChannel:
    """Asks the active controller on behalf of this node's broker."""

    def __init__(
        self,
        own_id: int,
        local: Decider | None,
        publisher: Publisher,
        ask: Ask,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        """Nobody is active yet.

        Args:
            own_id: this node.
            local: the controller in this process, if it has one.
            publisher: of the metadata.
            ask: asks another node's controller.
            deadlines: where it waits to ask again.
            clock: the time.
        """
        self._own_id = own_id
        self._local = local
        self._publisher = publisher
        self._ask = ask
        self._deadlines = deadlines
        self._clock = clock
        self._leader_id = -1
        self._leader_since_ms = clock.mono_ms()
        self._silent_since_ms: int | None = None
        self._waiting: deque[_Waiting] = deque()

    @property
    def image(self) -> MetadataImage:
        """The published image."""
        return self._publisher.image

    @property
    def leaderless_ms(self) -> int:
        """For how long nobody has been known to lead, or who leads has not answered."""
        since_ms = self._silent_since_ms if self._leader_id >= 0 else self._leader_since_ms
        return 0 if since_ms is None else self._clock.mono_ms() - since_ms

    def leader_changed(self, leader_id: int) -> None:
        """Another controller is active, or nobody (-1)."""
        self._leader_id = leader_id
        self._leader_since_ms = self._clock.mono_ms()
        self._ask_waiting()

    def submit(self, request: Message, *, wall_ms: int, reply: Reply) -> None:
        """Have the active controller decide on a request; `reply` gets its answer."""
        del wall_ms  # it looks at its own clock
        self._waiting.append(_Waiting(request, reply))
        if len(self._waiting) == 1:
            self._ask_waiting()

    def _ask_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self._leader_id >= 0:
            self._send(waiting.popleft())

    def _send(self, one: _Waiting) -> None:
        def answered(answer: Message | None) -> None:
            if answer is not None:
                self._silent_since_ms = None
            elif self._silent_since_ms is None:
                self._silent_since_ms = self._clock.mono_ms()
            if answer is None or is_not_controller(answer):
                self._again(one)
            else:
                one.reply(answer)

        if self._leader_id != self._own_id:
            self._ask(self._leader_id, one.request, answered)
        else:
            assert self._local is not None, "who leads has a controller"
            self._local.submit(one.request, wall_ms=self._clock.wall_ms(), reply=answered)

    def _again(self, one: _Waiting) -> None:
        """Rule 1."""

        def ask_again() -> None:
            self._waiting.append(one)
            if self._leader_id >= 0:
                self._ask_waiting()

        self._deadlines.schedule(self._clock.mono_ms() + _RETRY_MS, ask_again)
