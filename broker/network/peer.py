"""Requests to another node: one connection, kept while it serves, on which many requests may be under way.

RULES    1. Every request is answered once: with the message that came, or with None when the connection could not be made or
            ended, or when no answer came in time. A node that is silent for so long loses the connection.
         2. The first thing said on a connection is ApiVersions: a request leaves in the newest version that both know.
         3. After a failure the next request waits a little, so that a node that is down is not asked in a loop.
         4. A name that does not resolve is told of once, until the node has been reached: it may be a wrong one.
         5. Who has closed it makes no connection any more, so that none is on its way when the loop ends.
NOT HERE Who is asked for what, and asking again (`controller_channel.py`, `replication/`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, decoder, encoder
from protocol.errors import ErrorCode, MalformedRequest
from protocol.framing import SCRATCH_BYTES, FrameReader, frame_request
from protocol.messages.headers import ResponseHeader
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema import Message
from replication.timer_queue import Deadline, Deadlines

_log = logging.getLogger("barnabas.peers")

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
BELIEVED_BYTES: Final = 16 * 1024 * 1024
"""An answer of replica.fetch.response.max.bytes is received into one piece of memory."""
_BACKOFF_MS: Final = 50
_API_VERSIONS_VERSION: Final = 3

Reply = Callable[[Message | None], None]


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int


class _Asked(NamedTuple):
    """A request that was sent."""

    api_key: int
    version: int
    reply: Reply
    deadline: Deadline


class Caller(NamedTuple):
    """Who asks other nodes, and for how long."""

    loop: asyncio.AbstractEventLoop
    client_id: str
    deadlines: Deadlines
    mono_ms: Callable[[], int]
    timeout_ms: int
    """How long an answer may take."""


class Peers:
    """Connections to other nodes by their ids, made when first needed; `address` says where a node is now, if anybody knows."""

    def __init__(self, caller: Caller, address: Callable[[int], Address | None]) -> None:
        self._caller = caller
        self._address = address
        self._peers: dict[int, Peer] = {}

    def connection(self, node_id: int) -> Peer:
        """The one connection to a node."""
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = Peer(self._caller, partial(self._address, node_id))
        return peer

    def close(self) -> None:
        """End all connections."""
        for peer in self._peers.values():
            peer.close()


class Peer:
    """Another node."""

    def __init__(self, caller: Caller, address: Callable[[], Address | None]) -> None:
        """Connect when there is something to ask."""
        self._caller = caller
        self._address = address
        self._session: _Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failed_ms = -_BACKOFF_MS
        self._waiting: list[tuple[Message, Reply, int]] = []
        self._is_closed = False
        self._is_unresolved = False

    def ask(self, request: Message, reply: Reply, timeout_ms: int | None = None) -> None:
        """Send a request; `reply` is called later, once (rule 1)."""
        timeout_ms = self._caller.timeout_ms if timeout_ms is None else timeout_ms
        if self._session is not None and self._session.versions is not None:
            self._session.send(request, reply, timeout_ms)
            return
        self._waiting.append((request, reply, timeout_ms))
        if self._session is None and self._connecting is None:
            self._connecting = self._caller.loop.create_task(self._connect())

    def close(self) -> None:
        """End the connection; nothing is asked any more."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._session is not None:
            self._session.close("this node ends")

    async def _connect(self) -> None:
        address = None if self._is_closed else self._address()
        try:
            rest_ms = self._failed_ms + _BACKOFF_MS - self._caller.mono_ms()
            if rest_ms > 0:
                await asyncio.sleep(rest_ms / 1000)
            if address is None:
                raise ConnectionError("nobody knows where it is")
            async with asyncio.timeout(self._caller.timeout_ms / 1000):
                _, session = await self._caller.loop.create_connection(
                    lambda: _Session(self), address.host, address.port
                )
        except (OSError, TimeoutError) as error:
            _log.debug("node at %s cannot be reached: %s", address, error)
            if isinstance(error, socket.gaierror) and address is not None and not self._is_unresolved:
                self._is_unresolved = True
                _log.warning("the name %s of another node does not resolve: %s", address.host, error.strerror)
            self._connecting = None
            self._fail()
            return
        self._connecting = None
        self._is_unresolved = False
        self._session = session
        session.greet()

    # ------------------------------------------------------------ from the session
    def ready(self) -> None:
        """The versions are known: send what waits."""
        assert self._session is not None, "there is a session"
        waiting, self._waiting = self._waiting, []
        for request, reply, timeout_ms in waiting:
            self._session.send(request, reply, timeout_ms)

    def ended(self, reason: str) -> None:
        """The connection is gone."""
        _log.debug("connection to %s ended: %s", self._address(), reason)
        self._session = None
        self._fail()

    def _fail(self) -> None:
        self._failed_ms = self._caller.mono_ms()
        waiting, self._waiting = self._waiting, []
        for _, reply, _ in waiting:
            reply(None)

    @property
    def client_id(self) -> str:
        """Who asks."""
        return self._caller.client_id

    def schedule(self, delay_ms: int, act: Callable[[], None]) -> Deadline:
        """Have something done later."""
        return self._caller.deadlines.schedule(self._caller.mono_ms() + delay_ms, act)


class _Session(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(MAX_ANSWER_BYTES, bytearray(SCRATCH_BYTES), BELIEVED_BYTES)
        self._asked: dict[int, _Asked] = {}
        self._correlation_id = 0
        self._reason = "the other side closed it"
        self.versions: dict[int, tuple[int, int]] | None = None
        """What the node serves, by API key."""

    # ------------------------------------------------------------ asking
    def greet(self) -> None:
        """Rule 2."""
        request = ApiVersionsRequest(client_software_name="barnabas", client_software_version="1")
        self._send(request, _API_VERSIONS_VERSION, self._greeted, 10_000)

    def _greeted(self, answer: Message | None) -> None:
        if not isinstance(answer, ApiVersionsResponse):
            return  # the connection has ended
        if answer.error_code != ErrorCode.NONE:
            self.close(f"its ApiVersions answers {ErrorCode(answer.error_code).name}")
            return
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self._peer.ready()

    def send(self, request: Message, reply: Reply, timeout_ms: int) -> None:
        """Ask."""
        assert self.versions is not None, "the versions are known"
        lowest, highest = self.versions.get(request.API_KEY, (0, -1))
        version = min(highest, request.MAX_VERSION)
        if version < max(lowest, request.MIN_VERSION):
            _log.warning("the other node does not serve %s: it may be of another release", ApiKey(request.API_KEY).name)
            reply(None)
            return
        self._send(request, version, reply, timeout_ms)

    def _send(self, request: Message, version: int, reply: Reply, timeout_ms: int) -> None:
        assert self._transport is not None, "there is a connection"
        self._correlation_id += 1
        key, number = request.API_KEY, self._correlation_id
        parts = encoder(type(request), version)(request)
        is_flexible = request_header_version(key, version) >= 2
        self._transport.writelines(
            frame_request(key, version, number, self._peer.client_id, parts, flexible_header=is_flexible)
        )
        deadline = self._peer.schedule(timeout_ms, partial(self.close, "no answer came in time"))
        self._asked[number] = _Asked(key, version, reply, deadline)

    def close(self, reason: str) -> None:
        """End the connection."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ from the socket
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: nobody gets an answer any more."""
        asked, self._asked = self._asked, {}
        self._peer.ended(self._reason if exc is None else str(exc))
        for one in asked.values():
            one.deadline.cancel()
            one.reply(None)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """Where the next bytes go."""
        del sizehint
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        """More bytes have come."""
        try:
            for frame in self._frames.received(nbytes):
                self._answered(frame)
        except MalformedRequest as error:
            self.close(f"it sent what cannot be read: {error}")

    def _answered(self, frame: bytearray) -> None:
        number = int.from_bytes(frame[:4], "big")
        asked = self._asked.pop(number, None)
        if asked is None:
            raise MalformedRequest(f"nothing was asked under the number {number}")
        asked.deadline.cancel()
        position = 4
        if response_header_version(asked.api_key, asked.version) >= 1:
            _, position = decoder(ResponseHeader, 1)(frame, 0)
        try:
            answer = decode(APIS[asked.api_key][1], asked.version, frame, position)
        except MalformedRequest:
            asked.reply(None)
            raise
        asked.reply(answer)
