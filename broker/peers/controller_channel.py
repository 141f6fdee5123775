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
from dataclasses import dataclass, field
from typing import Any, Final

from broker.network.peer import SendRequest
from protocol.schema import Message
from replication.controller.controller_client import ControllerClient
from replication.controller.error_responses import is_not_controller_response
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.timer_queue import Clock, TimerQueue

_RETRY_MS: Final = 50

Reply = Callable[[Any], None]


@dataclass(eq=False)
class ControllerChannel:
    """Sends this broker's requests to the active controller."""

    _node_id: int
    _local: ControllerClient | None
    _publisher: MetadataPublisher
    _send_request: SendRequest
    _timers: TimerQueue
    _clock: Clock
    _leader_id: int = field(default=-1, init=False)
    _silent_since_ms: int | None = field(default=None, init=False)
    _queue: deque[tuple[Message, Reply]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._leader_since_ms = self._clock.mono_ms()

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
        self._queue.append((request, reply))
        if len(self._queue) == 1:
            self._send_queued()

    def _send_queued(self) -> None:
        waiting = self._queue
        while waiting and self._leader_id >= 0:
            self._send(*waiting.popleft())

    def _send(self, request: Message, reply: Reply) -> None:
        def on_response(response: Message | None) -> None:
            if response is not None:
                self._silent_since_ms = None
            elif self._silent_since_ms is None:
                self._silent_since_ms = self._clock.mono_ms()
            if response is None or is_not_controller_response(response):
                self._retry_later(request, reply)
            else:
                reply(response)

        if self._leader_id != self._node_id:
            self._send_request(self._leader_id, request, on_response)
        else:
            assert self._local is not None, "the leader has a controller"
            self._local.submit(request, wall_ms=self._clock.wall_ms(), reply=on_response)

    def _retry_later(self, request: Message, reply: Reply) -> None:
        """Sends the request again after a backoff (rule 1)."""

        def ask_again() -> None:
            self._queue.append((request, reply))
            if self._leader_id >= 0:
                self._send_queued()

        self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, ask_again)
