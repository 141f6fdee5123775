"""Log lines about nodes that cannot be reached (broker/network/peer_failures.py)."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from broker.network.peer import ClientContext, HostAndPort, Peer, PeerConnections
from broker.network.peer_failures import PeerFailures
from broker.network.repeated_lines import INTERVAL_S
from broker.telemetry.peer_traffic import PeerTraffic
from protocol.codec import encode
from protocol.messages.metadata import ApiVersionsResponse, MetadataRequest
from replication.timer_queue import TimerQueue
from tests.support.messages import message

API_VERSIONS, METADATA = 18, 3
NODE = "the node at a:1"


async def read_frame(reader: asyncio.StreamReader) -> None:
    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def answer_text(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of neither TLS nor Kafka's protocol."""
    writer.write(b"hello\n")
    writer.close()


async def close_after_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that does not accept what the peer sends, such as a listener with TLS."""
    await read_frame(reader)
    writer.close()


async def answer_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that answers ApiVersions and then ends."""
    await read_frame(reader)
    keys = [{"api_key": key, "min_version": 0, "max_version": 3} for key in (API_VERSIONS, METADATA)]
    body = (1).to_bytes(4, "big") + encode(message(ApiVersionsResponse, error_code=0, api_keys=keys), 3)
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()
    writer.close()


async def ask(caplog: pytest.LogCaptureFixture, *servers: Any, tls: Any = None, step_ms: int = 1000) -> list[str]:
    """Asks a peer once while each of the servers has its port, `step_ms` after each other; returns the lines."""
    caplog.set_level("INFO", "barnabas.peers")
    now_ms, port = 0, 0
    traffic, loop = PeerTraffic(), asyncio.get_running_loop()
    caller = ClientContext(loop, "test", TimerQueue(), lambda: now_ms, 5000, tls)
    peer = Peer(caller, lambda: HostAndPort("127.0.0.1", port), traffic, "node 2")
    for serve in servers:
        now_ms += step_ms
        if serve is None:
            await answered(peer)
            continue
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        port = server.sockets[0].getsockname()[1]
        await answered(peer)
        server.close()
    return [record.getMessage().replace(f":{port}", ":9093") for record in caplog.records]


async def answered(peer: Peer) -> None:
    replied = asyncio.Event()
    peer.send_request(MetadataRequest(topics=None)).then(lambda _: replied.set())
    await asyncio.wait_for(replied.wait(), 10)


def test_a_failure_of_tls_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tls = SimpleNamespace(client=ssl.create_default_context())
    lines = uvloop.run(ask(caplog, answer_text, answer_text, answer_text, tls=tls))
    assert len(lines) == 1
    assert lines[0].startswith("cannot connect to the node at 127.0.0.1:9093: TLS: ")


def test_a_changed_reason_and_a_connection_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    lines = uvloop.run(
        ask(caplog, close_after_request, close_after_request, None, None, answer_versions, answer_versions)
    )
    assert lines == [
        "cannot connect to the node at 127.0.0.1:9093: the other node closed the connection",
        "cannot connect to the node at 127.0.0.1:9093 for 2 s: Connection refused",
        "connected to the node at 127.0.0.1:9093, after 4.0 s of failures",
    ]


def test_a_reason_is_logged_again_after_a_minute_and_after_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.peers")
    failures = PeerFailures()
    for second in (0.0, 1.0, INTERVAL_S - 0.1, INTERVAL_S, INTERVAL_S + 1):
        failures.on_failed(NODE, "refused", second)
    failures.on_connected(NODE, 70.0)
    failures.on_connected(NODE, 71.0)
    failures.on_failed(NODE, "refused", 72.0)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot connect to the node at a:1: refused",
        "cannot connect to the node at a:1 for 60 s: refused",
        "connected to the node at a:1, after 70.0 s of failures",
        "cannot connect to the node at a:1: refused",
    ]


async def ask_without_address(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level("INFO", "barnabas.peers")
    now_ms, addresses = 0, iter([None, None])
    caller = ClientContext(asyncio.get_running_loop(), "test", TimerQueue(), lambda: now_ms, 5000)
    peers = PeerConnections(caller, lambda _: next(addresses))
    for _ in range(2):
        now_ms += 1000
        await answered(peers.connection(2))
    return [record.getMessage() for record in caplog.records]


def test_a_node_without_an_address_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Such as one whose inter.broker.listener.name differs: its followers replicate nothing."""
    assert uvloop.run(ask_without_address(caplog)) == [
        "cannot connect to node 2: it is not registered, or has no listener with the name that this node uses"
    ]
