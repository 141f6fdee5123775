"""The channel to the active controller, in this process or on another node (Kafka: NodeToControllerChannelManager).

RULES    1. A request is retried until an active controller answers it: there is none during an election, and the known one
            may have resigned (NOT_CONTROLLER). If another controller is active and the old one does not answer for
            `_PATIENCE_MS`, the request is sent to the new one.
            A client's request is not sent any more `_CLIENT_TIMEOUT_MS` after it arrived: the client gets REQUEST_TIMED_OUT, as
            from Apache Kafka.
         2. Requests are sent in order while the controller stays the same.
         3. The controller of this process is called directly. A client's request to another node is in an envelope, on a
            connection of its own: the controller may need long for it, and executes it twice if it is sent twice.
NOT HERE Which node leads (`replication/metadata_log/kraft_replica.py`), connections (`network/peer.py`), the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from broker.network.peer import SendRequest
from broker.peers.forwarding import envelope, response_in
from protocol.errors import ErrorCode
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import Client, Controller
from replication.controller.error_responses import error_response, is_not_controller_response
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher
from replication.timer_queue import Clock, Timer, TimerQueue

_RETRY_MS: Final = 50
_PATIENCE_MS: Final = 2_000
_CLIENT_TIMEOUT_MS: Final = 60_000


class _Submitted(NamedTuple):
    """A request that has no response yet."""

    request: Message
    client: Client | None
    """The client whose request is forwarded; None: the request is this broker's own."""
    response: Completion[Any]
    expiry: Timer | None
    """Ends a client's request, also if the client is gone."""


class _Attempt(NamedTuple):
    """A request that was sent to a controller, which has not answered."""

    submitted: _Submitted
    leader_id: int


@dataclass(eq=False)
class ControllerChannel:
    """Sends this broker's requests to the active controller."""

    _node_id: int
    _local: Controller | None
    _publisher: MetadataPublisher
    _send_request: SendRequest
    _send_envelope: SendRequest
    _timers: TimerQueue
    _clock: Clock
    _leader_id: int = field(default=-1, init=False)
    _silent_since_ms: int | None = field(default=None, init=False)
    _queue: deque[_Submitted] = field(default_factory=deque, init=False)
    _attempts: dict[int, _Attempt] = field(default_factory=dict, init=False)
    _attempt_ids: Iterator[int] = field(default_factory=count, init=False)

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
        if self._attempts:
            self._timers.schedule(self._clock.mono_ms() + _PATIENCE_MS, self._abandon_attempts)

    def _abandon_attempts(self) -> None:
        """Send the requests again that an earlier controller has not answered (rule 1)."""
        if self._leader_id < 0:
            return
        for number, attempt in list(self._attempts.items()):
            if attempt.leader_id != self._leader_id:
                del self._attempts[number]
                self._enqueue(attempt.submitted)

    def submit(self, request: Message, client: Client | None = None) -> Completion[Any]:
        """Sends a request of this broker, or of a client, to the active controller."""
        response: Completion[Any] = Completion()
        expiry = None
        if client is not None:
            expire = partial(self._expire, request, response)
            expiry = self._timers.schedule(self._clock.mono_ms() + _CLIENT_TIMEOUT_MS, expire)
        self._enqueue(_Submitted(request, client, response, expiry))
        return response

    def _expire(self, request: Message, response: Completion[Any]) -> None:
        """Answer a client whose request no controller has answered (rule 1)."""
        self._queue = deque(other for other in self._queue if other.response is not response)
        response.complete(error_response(request, ErrorCode.REQUEST_TIMED_OUT, "The request timed out."))

    def _enqueue(self, submitted: _Submitted) -> None:
        if submitted.expiry is None or submitted.expiry.is_pending:
            self._queue.append(submitted)
            self._send_queued()

    def _send_queued(self) -> None:
        while self._queue and self._leader_id >= 0:
            self._send(self._queue.popleft())

    def _send(self, submitted: _Submitted) -> None:
        request, client = submitted.request, submitted.client
        if self._leader_id == self._node_id:
            assert self._local is not None, "the leader has a controller"
            sent = self._local.submit(request, client)
        elif client is None:
            sent = self._send_request(self._leader_id, request)
        else:
            sent = self._send_envelope(self._leader_id, envelope(request, client)).map(
                partial(response_in, request, client)
            )
        number = next(self._attempt_ids)
        self._attempts[number] = _Attempt(submitted, self._leader_id)
        sent.then(partial(self._on_response, number))

    def _on_response(self, number: int, sent: Completion[Message | None]) -> None:
        attempt = self._attempts.pop(number, None)
        if attempt is None:
            return
        submitted, answer = attempt.submitted, sent.result()
        if answer is not None:
            self._silent_since_ms = None
        elif self._silent_since_ms is None:
            self._silent_since_ms = self._clock.mono_ms()
        if answer is None or is_not_controller_response(answer):
            again = partial(self._enqueue, submitted)
            self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, again)
            return
        if submitted.expiry is not None:
            submitted.expiry.cancel()
        submitted.response.complete(answer)
