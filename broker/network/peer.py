"""Requests to another node over one persistent connection with many requests in flight (Kafka: NetworkClient).

RULES    1. Every request gets exactly one result: the response, or None if the connection fails or ends, or if no response
            arrives within the timeout. A timeout closes the connection.
         2. The first request on a connection is ApiVersions: requests use the newest version that both nodes support.
         3. After a failure the next connection attempt waits for a short backoff.
         4. A connection that closes before requests can be sent is a failure to connect, and is logged as such.
         5. With SASL, this node authenticates before the first request; a failure closes the connection. If the session has a
            lifetime, it authenticates again before the end; requests wait meanwhile.
         6. A closed peer opens no connection, so that none is pending when the event loop is closed.
NOT HERE Which node gets which request, and retries (`controller_channel.py`, `replication/`), how often a failure is logged
         (`peer_failures.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.config.sasl_configs import ClientCredentials
from broker.network.peer_failures import PEER_FAILURES, reason_of
from broker.security.sasl.client import InvalidServer, SaslClient, sasl_client
from broker.security.sasl.oauth_login import NoToken
from broker.security.tls_context import ListenerTls
from broker.telemetry.peer_traffic import PeerTraffic
from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, decoder, encoder
from protocol.errors import ErrorCode, MalformedRequest
from protocol.framing import SCRATCH_BYTES, FrameReader, frame_request
from protocol.messages.headers import ResponseHeader
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.schema import Message
from replication.completion import Completion
from replication.timer_queue import Timer, TimerQueue

_log = logging.getLogger("barnabas.peers")

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
MAX_PREALLOCATED_BYTES: Final = 16 * 1024 * 1024
"""Responses up to this size are received into one buffer; covers replica.fetch.response.max.bytes."""
_BACKOFF_MS: Final = 50
_API_VERSIONS_VERSION: Final = 3
_AUTHENTICATE_VERSION: Final = 2
_SETUP_TIMEOUT_MS: Final = 10_000
"""The longest wait for a response before requests can be sent."""
_UNKNOWN_ADDRESS: Final = "it is not registered, or has no listener with the name that this node uses"
_NONCE_BYTES: Final = 24
_LIFETIME_USED: Final = 0.85
"""The share of a session's lifetime after which this node authenticates again; Apache Kafka's is 0.85 to 0.95."""

Response = Completion[Message | None]
"""The response to a request, or None (rule 1)."""
SendRequest = Callable[[int, Message], Response]
"""Sends a request to a node by id."""


class HostAndPort(NamedTuple):
    """The address of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _InFlight(NamedTuple):
    """A request that was sent."""

    api_key: int
    version: int
    response: Response
    deadline: Timer


class PeerLogin(NamedTuple):
    """How this node authenticates to others."""

    mechanism: str
    new_client: Callable[[], SaslClient]
    """Creates the client of one authentication."""


def peer_login(credentials: ClientCredentials | None) -> PeerLogin | None:
    """How this node authenticates with these credentials; None without."""
    if credentials is None:
        return None
    return PeerLogin(credentials.mechanism, lambda: sasl_client(credentials, secrets.token_urlsafe(_NONCE_BYTES)))


class ClientContext(NamedTuple):
    """The event loop, clock and limits of the connections that a part of this node opens."""

    loop: asyncio.AbstractEventLoop
    client_id: str
    timers: TimerQueue
    mono_ms: Callable[[], int]
    timeout_ms: int
    """The longest time until a response arrives."""
    tls: ListenerTls | None = None
    """Encrypts the connections; None: they are plaintext."""
    login: PeerLogin | None = None
    """How this node authenticates; None: the other nodes' listener has no SASL."""


class PeerConnections:
    """Connections to other nodes by node id, opened on demand.

    `address` returns the current address of a node, or None if it is unknown.
    """

    def __init__(self, caller: ClientContext, address: Callable[[int], HostAndPort | None]) -> None:
        self._caller = caller
        self._address = address
        self._peers: dict[int, Peer] = {}
        self.traffic = PeerTraffic()

    def connection(self, node_id: int) -> Peer:
        """The connection to a node."""
        peer = self._peers.get(node_id)
        if peer is None:
            address = partial(self._address, node_id)
            peer = self._peers[node_id] = Peer(self._caller, address, self.traffic, f"node {node_id}")
        return peer

    def send_request(self, node_id: int, request: Message) -> Response:
        """Sends a request to a node."""
        return self.connection(node_id).send_request(request)

    def close(self) -> None:
        """Closes all connections."""
        for peer in self._peers.values():
            peer.close()


class Peer:
    """The connection to one node."""

    def __init__(
        self, caller: ClientContext, address: Callable[[], HostAndPort | None], traffic: PeerTraffic, name: str
    ) -> None:
        """The first request opens the connection. `name`: for log lines while its address is unknown."""
        self._caller = caller
        self._traffic = traffic
        self._address = address
        self._name = name
        self._session: _Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failed_ms = -_BACKOFF_MS
        self._waiting: list[tuple[Message, Response, int]] = []
        self._is_closed = False
        self._target: HostAndPort | None = None
        self._had_no_address = False

    def send_request(self, request: Message, timeout_ms: int | None = None) -> Response:
        """Sends a request; the response arrives later (rule 1)."""
        response: Response = Completion()
        timeout_ms = self._caller.timeout_ms if timeout_ms is None else timeout_ms
        if self._session is not None and self._session.is_ready:
            self._session.send(request, response, timeout_ms)
            return response
        self._waiting.append((request, response, timeout_ms))
        if self._session is None and self._connecting is None:
            self._connecting = self._caller.loop.create_task(self._connect())
        return response

    def close(self) -> None:
        """Closes the connection; later requests fail."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._session is not None:
            self._session.close("this node is shutting down")

    async def _connect(self) -> None:
        address = self._target = None if self._is_closed else self._address()
        try:
            backoff_ms = self._failed_ms + _BACKOFF_MS - self._caller.mono_ms()
            if backoff_ms > 0:
                await asyncio.sleep(backoff_ms / 1000)
            if address is None:
                raise ConnectionError(_UNKNOWN_ADDRESS)
            async with asyncio.timeout(self._caller.timeout_ms / 1000):
                tls = None if self._caller.tls is None else self._caller.tls.client
                _, session = await self._caller.loop.create_connection(
                    lambda: _Session(self, self._caller, self._traffic),
                    address.host,
                    address.port,
                    ssl=tls,
                    server_hostname=None if tls is None else address.host,
                )
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: the host cannot be a name
            self._log_failure(reason_of(error))
            self._connecting = None
            self._fail_waiting()
            return
        self._connecting = None
        self._session = session
        session.request_api_versions()

    # ------------------------------------------------------------ from the session
    def on_ready(self) -> None:
        """The versions are known, and this node is authenticated: sends the queued requests."""
        assert self._session is not None, "there is a session"
        assert self._target is not None, "the session has an address"
        PEER_FAILURES.on_connected(f"the node at {self._target}", self._caller.mono_ms() / 1000)
        if self._had_no_address:
            self._had_no_address = False
            PEER_FAILURES.on_connected(self._name, self._caller.mono_ms() / 1000)
        waiting, self._waiting = self._waiting, []
        for request, response, timeout_ms in waiting:
            self._session.send(request, response, timeout_ms)

    def on_closed(self, reason: str, *, was_ready: bool) -> None:
        """The connection is closed."""
        if was_ready or self._is_closed:
            _log.debug("connection to %s closed: %s", self._target, reason)
        else:
            self._log_failure(reason)
        self._session = None
        self._fail_waiting()

    def _log_failure(self, reason: str) -> None:
        if self._target is not None:
            PEER_FAILURES.on_failed(f"the node at {self._target}", reason, self._caller.mono_ms() / 1000)
        elif not self._is_closed:
            self._had_no_address = True
            PEER_FAILURES.on_failed(self._name, reason, self._caller.mono_ms() / 1000)

    def _fail_waiting(self) -> None:
        self._failed_ms = self._caller.mono_ms()
        waiting, self._waiting = self._waiting, []
        for _, response, _ in waiting:
            response.complete(None)


class _Session(asyncio.BufferedProtocol):
    """One connection, as an asyncio protocol."""

    def __init__(self, peer: Peer, caller: ClientContext, traffic: PeerTraffic) -> None:
        self._peer = peer
        self._traffic = traffic
        self._caller = caller
        self._setup_timeout_ms = min(caller.timeout_ms, _SETUP_TIMEOUT_MS)
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(MAX_RESPONSE_BYTES, bytearray(SCRATCH_BYTES), MAX_PREALLOCATED_BYTES)
        self._in_flight: dict[int, _InFlight] = {}
        self._correlation_id = 0
        self._reason = "the other node closed the connection"
        self._next_login: Timer | None = None
        self.versions: dict[int, tuple[int, int]] | None = None
        """The API versions that the peer supports, by API key."""
        self.is_ready = False
        """Whether requests can be sent: the versions are known, and this node is authenticated."""

    # ------------------------------------------------------------ asking
    def request_api_versions(self) -> None:
        """Sends ApiVersions (rule 2)."""
        request = ApiVersionsRequest(client_software_name="barnabas", client_software_version="1")
        versions: Response = Completion()
        self._send(request, _API_VERSIONS_VERSION, versions, self._setup_timeout_ms)
        versions.then(self._on_api_versions)

    def _on_api_versions(self, versions: Response) -> None:
        response = versions.value
        if not isinstance(response, ApiVersionsResponse):
            return  # the connection is closed
        if response.error_code != ErrorCode.NONE:
            self.close(f"ApiVersions failed with {ErrorCode(response.error_code).name}")
            return
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        if self._caller.login is None:
            self._on_authenticated()
        else:
            self._log_in(self._caller.login)

    # ------------------------------------------------------------ authentication (rule 5)
    def _log_in(self, login: PeerLogin) -> None:
        accepted: Response = Completion()
        self._send(SaslHandshakeRequest(mechanism=login.mechanism), 1, accepted, self._setup_timeout_ms)
        accepted.then(lambda response: self._on_handshake(login, response.value))

    def _on_handshake(self, login: PeerLogin, response: Message | None) -> None:
        if not isinstance(response, SaslHandshakeResponse):
            return  # the connection is closed
        if response.error_code != ErrorCode.NONE:
            self._fail_login(f"it does not enable {login.mechanism}")
            return
        try:
            client = login.new_client()
        except NoToken as error:
            self._fail_login(str(error))
            return
        self._send_token(client, client.first())

    def _send_token(self, client: SaslClient, token: bytes) -> None:
        answered: Response = Completion()
        self._send(SaslAuthenticateRequest(auth_bytes=token), _AUTHENTICATE_VERSION, answered, self._setup_timeout_ms)
        answered.then(lambda response: self._on_token(client, response.value))

    def _on_token(self, client: SaslClient, response: Message | None) -> None:
        if not isinstance(response, SaslAuthenticateResponse):
            return  # the connection is closed
        if response.error_code != ErrorCode.NONE:
            self._fail_login(response.error_message or ErrorCode(response.error_code).name)
            return
        try:
            token = client.answer(bytes(response.auth_bytes))
        except InvalidServer as error:
            self._fail_login(str(error))
            return
        if token is None:
            self._log_in_before(response.session_lifetime_ms)
            self._on_authenticated()
        else:
            self._send_token(client, token)

    def _log_in_before(self, lifetime_ms: int) -> None:
        if lifetime_ms > 0:
            at_mono_ms = self._caller.mono_ms() + int(lifetime_ms * _LIFETIME_USED)
            self._next_login = self._caller.timers.schedule(at_mono_ms, self._log_in_again)

    def _log_in_again(self) -> None:
        assert self._caller.login is not None, "it logged in before"
        self.is_ready = False
        self._log_in(self._caller.login)

    def _on_authenticated(self) -> None:
        self.is_ready = True
        self._peer.on_ready()

    def _fail_login(self, reason: str) -> None:
        self.close(f"authentication failed: {reason}")

    def send(self, request: Message, response: Response, timeout_ms: int) -> None:
        """Sends a request in the newest version that both nodes support."""
        assert self.versions is not None, "the versions are known"
        lowest, highest = self.versions.get(request.API_KEY, (0, -1))
        version = min(highest, request.MAX_VERSION)
        if version < max(lowest, request.MIN_VERSION):
            _log.warning("the peer does not support %s: it may run another release", ApiKey(request.API_KEY).name)
            response.complete(None)
            return
        self._send(request, version, response, timeout_ms)

    def _send(self, request: Message, version: int, response: Response, timeout_ms: int) -> None:
        assert self._transport is not None, "there is a connection"
        self._correlation_id += 1
        key, number = request.API_KEY, self._correlation_id
        parts = encoder(type(request), version)(request)
        is_flexible = request_header_version(key, version) >= 2
        frame = frame_request(key, version, number, self._caller.client_id, parts, flexible_header=is_flexible)
        self._transport.writelines(frame)
        self._traffic.requests += 1
        self._traffic.bytes_out += sum(map(len, frame))
        deadline_ms = self._caller.mono_ms() + timeout_ms
        deadline = self._caller.timers.schedule(deadline_ms, partial(self.close, "no response within the timeout"))
        self._in_flight[number] = _InFlight(key, version, response, deadline)

    def close(self, reason: str) -> None:
        """Closes the connection."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ from the socket
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is open."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is closed; fails the requests in flight."""
        in_flight, self._in_flight = self._in_flight, {}
        if self._next_login is not None:
            self._next_login.cancel()
        reason = self._reason if exc is None else reason_of(exc)
        self._peer.on_closed(reason, was_ready=self.is_ready)
        for request in in_flight.values():
            request.deadline.cancel()
            request.response.complete(None)

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """The buffer for the next bytes."""
        del sizehint
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
        self._traffic.bytes_in += nbytes
        try:
            for frame in self._frames.received(nbytes):
                self._on_response(frame)
        except MalformedRequest as error:
            self.close(f"it sent a malformed response: {error}")

    def _on_response(self, frame: bytearray) -> None:
        number = int.from_bytes(frame[:4], "big")
        request = self._in_flight.pop(number, None)
        if request is None:
            raise MalformedRequest(f"no request has the correlation id {number}")
        request.deadline.cancel()
        self._traffic.responses += 1
        position = 4
        if response_header_version(request.api_key, request.version) >= 1:
            _, position = decoder(ResponseHeader, 1)(frame, 0)
        try:
            response = decode(APIS[request.api_key].response, request.version, frame, position)
        except MalformedRequest:
            request.response.complete(None)
            raise
        request.response.complete(response)
