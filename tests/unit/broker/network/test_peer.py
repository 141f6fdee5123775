"""Requests to another node (broker/network/peer.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import uvloop

from broker.network.peer import ClientContext, HostAndPort, Peer, PeerLogin
from broker.telemetry.peer_traffic import PeerTraffic
from protocol.codec import encode
from protocol.framing import frame_response
from protocol.messages.metadata import ApiVersionsResponse, MetadataRequest


class NoDeadlines:
    """No request has a deadline here."""

    def schedule(self, at_ms: int, act: Callable[[], None]) -> Any:
        raise AssertionError


def test_a_closed_peer_fails_requests_and_opens_no_connection() -> None:
    loop = uvloop.new_event_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        address = HostAndPort(*listener.getsockname())
        caller = ClientContext(loop, "test", NoDeadlines(), lambda: 0, 5000)  # type: ignore[arg-type]
        peer = Peer(caller, lambda: address, PeerTraffic(), "node 2")
        peer.close()
        replied = asyncio.Event()
        answer = peer.send_request(MetadataRequest(topics=None))
        answer.then(lambda _: replied.set())
        loop.run_until_complete(asyncio.wait_for(replied.wait(), 10))
        loop.close()
        assert answer.result() is None
        assert faults == []
        try:
            listener.accept()
        except BlockingIOError:
            return
        raise AssertionError("a connection was made")


@pytest.mark.parametrize("host", ["a..example", f"{'a' * 64}.example"])
def test_a_host_that_is_no_name_fails_requests(host: str, caplog: pytest.LogCaptureFixture) -> None:
    loop = uvloop.new_event_loop()
    address = HostAndPort(host, 9092)
    caller = ClientContext(loop, "test", NoDeadlines(), lambda: 0, 5000)  # type: ignore[arg-type]
    peer = Peer(caller, lambda: address, PeerTraffic(), "node 2")

    async def send() -> None:
        replied = asyncio.Event()
        answer = peer.send_request(MetadataRequest(topics=None))
        answer.then(lambda _: replied.set())
        await asyncio.wait_for(replied.wait(), 10)
        assert answer.result() is None

    for _ in range(2):
        loop.run_until_complete(send())
    loop.close()
    assert f"{host}:9092: the host name is not valid" in caplog.text


class LoopDeadlines:
    """Deadlines on an event loop whose time counts in milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def mono_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def schedule(self, at_ms: int, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(at_ms / 1000, act)


def test_a_suspended_node_fails_requests_within_the_timeout() -> None:
    """Its kernel still accepts connections."""
    loop = uvloop.new_event_loop()
    deadlines = LoopDeadlines(loop)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = HostAndPort(*listener.getsockname())
        caller = ClientContext(loop, "test", deadlines, deadlines.mono_ms, 100)  # type: ignore[arg-type]
        peer = Peer(caller, lambda: address, PeerTraffic(), "node 2")
        replied = asyncio.Event()
        answer = peer.send_request(MetadataRequest(topics=None))
        answer.then(lambda _: replied.set())
        loop.run_until_complete(asyncio.wait_for(replied.wait(), 5))
        peer.close()
        loop.close()
    assert answer.result() is None


def test_a_node_that_does_not_answer_the_login_fails_requests_within_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = uvloop.new_event_loop()
    deadlines = LoopDeadlines(loop)

    def new_client() -> NoReturn:
        raise AssertionError("the login is not answered")

    async def answer_api_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        body = encode(ApiVersionsResponse(error_code=0, api_keys=[]), 3)
        (frame,) = frame_response(1, [body], flexible_header=False)
        assert isinstance(frame, bytes)
        writer.write(frame)
        await reader.read()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(answer_api_versions, "127.0.0.1", 0)
        address = HostAndPort(*server.sockets[0].getsockname())
        login = PeerLogin("PLAIN", new_client)
        caller = ClientContext(loop, "test", deadlines, deadlines.mono_ms, 100, login=login)  # type: ignore[arg-type]
        peer = Peer(caller, lambda: address, PeerTraffic(), "node 2")
        replied = asyncio.Event()
        answer = peer.send_request(MetadataRequest(topics=None))
        answer.then(lambda _: replied.set())
        await asyncio.wait_for(replied.wait(), 5)
        assert answer.result() is None
        assert "no response within the timeout" in caplog.text
        peer.close()
        server.close()
        await server.wait_closed()

    loop.run_until_complete(ask())
    loop.close()
