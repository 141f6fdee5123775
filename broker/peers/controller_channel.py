"""The channel to the active controller, in this process or on another node (Kafka: NodeToControllerChannelManager).

RULES    1. A request is retried until an active controller answers it: there is none during an election, and the known one
            may have resigned (NOT_CONTROLLER).
         2. Requests are sent in order while the controller stays the same.
         3. The controller of this process is called directly.
NOT HERE Which node leads (`replication/metadata_log/kraft_replica.py`), connections (`network/peer.py`), the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from protocol.schema import Message
from replication.controller.controller_client import ControllerClient
from replication.controller.error_responses import is_not_controller_response
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.timer_queue import Clock, TimerQueue

_RETRY_MS: Final = 50

Reply = Callable[[Any], None]
SendRequest = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Sends a request to a node by id; the callback gets the response or None."""


class _Waiting(NamedTuple):
    """A request and its callback."""

    request: Message
    reply: Reply


class ControllerChannel:
    """Sends this broker's requests to the active controller."""

    def __init__(
        self,
        node_id: int,
        local: ControllerClient | None,
        publisher: MetadataPublisher,
        send_request: SendRequest,
        timers: TimerQueue,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._local = local
        self._publisher = publisher
        self._send_request = send_request
        self._timers = timers
        self._clock = clock
        self._leader_id = -1
        self._leader_since_ms = clock.mono_ms()
        self._silent_since_ms: int | None = None
        self._queue: deque[_Waiting] = deque()

    @property
    def image(self) -> MetadataImage:
        """The published image."""
        return self._publisher.image

    @property
    def leaderless_ms(self) -> int:
        """How long there has been no known leader, or the leader has not answered."""
        since_ms = self._silent_since_ms if self._leader_id >= 0 else self._leader_since_ms
        return 0 if since_ms is None else self._clock.mono_ms() - since_ms

    def leader_changed(self, leader_id: int) -> None:
        """Another controller is active, or none (-1)."""
        self._leader_id = leader_id
        self._leader_since_ms = self._clock.mono_ms()
        self._send_queued()

    def submit(self, request: Message, *, wall_ms: int, reply: Reply) -> None:
        """Sends a request to the active controller; `reply` gets the response."""
        del wall_ms  # the controller uses its own clock
        self._queue.append(_Waiting(request, reply))
        if len(self._queue) == 1:
            self._send_queued()

    def _send_queued(self) -> None:
        waiting = self._queue
        while waiting and self._leader_id >= 0:
            self._send(waiting.popleft())

    def _send(self, one: _Waiting) -> None:
        def on_response(response: Message | None) -> None:
            if response is not None:
                self._silent_since_ms = None
            elif self._silent_since_ms is None:
                self._silent_since_ms = self._clock.mono_ms()
            if response is None or is_not_controller_response(response):
                self._retry_later(one)
            else:
                one.reply(response)

        if self._leader_id != self._node_id:
            self._send_request(self._leader_id, one.request, on_response)
        else:
            assert self._local is not None, "the leader has a controller"
            self._local.submit(one.request, wall_ms=self._clock.wall_ms(), reply=on_response)

    def _retry_later(self, one: _Waiting) -> None:
        """Sends the request again after a backoff (rule 1)."""

        def ask_again() -> None:
            self._queue.append(one)
            if self._leader_id >= 0:
                self._send_queued()

        self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, ask_again)
