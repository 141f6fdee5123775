"""Handshakes on an event loop: steps in a thread, closing during a step, failures (broker/network/tls_handshake.py)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from broker.io.worker_thread import WorkerThread
from broker.network.tls_handshake import TlsHandshake
from broker.network.tls_transport import TlsBuffers, TlsTransportLayer
from tests.support.certificates import Certificates

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def keystore(certificates: Certificates) -> Path:
    return certificates.create("node", "/CN=node")


class SlowTransport(TlsTransportLayer):
    """A transport whose steps wait for an event, in place of a large key."""

    may_step = Event()
    has_begun = Event()

    def step_handshake(self) -> bool:
        self.has_begun.set()
        assert self.may_step.wait(LIMIT_S)
        return super().step_handshake()


class Rig:
    """Handshakes of one listener, and their results."""

    def __init__(self, keystore: Path, ca: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.steps = WorkerThread(self.loop, "steps")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(keystore)
        self.client = ssl.create_default_context(cafile=ca)
        self.complete: list[TlsHandshake] = []
        self.closed: list[TlsHandshake] = []
        self._ended = asyncio.Event()
        self._sockets: list[socket.socket] = []

    def accept(self, kind: type[TlsTransportLayer] = TlsTransportLayer) -> tuple[TlsHandshake, socket.socket]:
        """A handshake, and the client's end of its socket."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        transport = kind(near, self.server, TlsBuffers())
        handshake = TlsHandshake(
            self.loop,
            self.steps,
            transport,
            ("client", 1),
            partial(self._end, self.complete),
            partial(self._end, self.closed),
        )
        self._sockets.append(far)
        return handshake, far

    def _end(self, handshakes: list[TlsHandshake], handshake: TlsHandshake) -> None:
        handshakes.append(handshake)
        self._ended.set()

    async def end(self) -> None:
        """Waits until one more handshake is complete or closed."""
        await self._ended.wait()
        self._ended.clear()

    async def begin_step(self) -> None:
        """Waits until a step of a `SlowTransport` runs."""
        assert await self.loop.run_in_executor(None, SlowTransport.has_begun.wait, LIMIT_S)

    async def end_step(self) -> None:
        """Lets it end, and waits until the event loop has its result."""
        SlowTransport.may_step.set()
        reported = asyncio.Event()
        self.steps.put(lambda: None).then(lambda _: reported.set())
        await reported.wait()

    async def connect(self, far: socket.socket) -> None:
        """The client's side of a handshake."""
        _, protocol = await self.loop.create_connection(
            asyncio.Protocol, sock=far, ssl=self.client, server_hostname="localhost"
        )
        del protocol

    def close(self) -> None:
        SlowTransport.may_step.set()
        self.steps.stop()
        for handshake in self.complete:
            handshake.transport.close()
        for far in self._sockets:
            far.close()


def play(certificates: Certificates, keystore: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        rig = Rig(keystore, certificates.ca)
        SlowTransport.may_step.clear()
        SlowTransport.has_begun.clear()
        try:
            await asyncio.wait_for(scenario(rig), LIMIT_S)
        finally:
            rig.close()

    asyncio.run(run())


def test_the_loop_runs_while_a_step_computes(certificates: Certificates, keystore: Path) -> None:
    async def scenario(rig: Rig) -> None:
        _, far = rig.accept(SlowTransport)
        client = asyncio.ensure_future(rig.connect(far))
        await rig.begin_step()  # would never return if the step were on the loop
        assert not rig.complete
        SlowTransport.may_step.set()
        await client
        await rig.end()
        assert rig.complete

    play(certificates, keystore, scenario)


def test_closing_during_a_step_closes_the_socket_after_it(certificates: Certificates, keystore: Path) -> None:
    async def scenario(rig: Rig) -> None:
        handshake, far = rig.accept(SlowTransport)
        client = asyncio.ensure_future(rig.connect(far))
        await rig.begin_step()
        handshake.close()
        assert rig.closed == [handshake]
        assert handshake.transport._socket.fileno() >= 0
        await rig.end_step()
        assert handshake.transport._socket.fileno() < 0
        assert not rig.complete
        client.cancel()

    play(certificates, keystore, scenario)


def test_two_hundred_half_open_and_slow_handshakes_delay_no_other(certificates: Certificates, keystore: Path) -> None:
    async def scenario(rig: Rig) -> None:
        slow = [rig.accept()[1] for _ in range(200)]
        for number in range(4):  # a quarter sends nothing, the others one byte at a time
            for far in slow[50:]:
                far.send(b"\x16\x03\x01\x02"[number : number + 1])
            handshake, far = rig.accept()
            await rig.connect(far)
            await rig.end()
            assert rig.complete[-1] == handshake
        assert not rig.closed

    play(certificates, keystore, scenario)


def test_a_failure_sends_its_alert_and_costs_one_log_line_a_minute(
    certificates: Certificates, keystore: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.server.minimum_version = ssl.TLSVersion.TLSv1_3
        rig.client.maximum_version = ssl.TLSVersion.TLSv1_2
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            rig.client.wrap_bio(received, sent, server_hostname="localhost").do_handshake()
        for hello, alert in [(sent.read(), b"\x15"), *[(b"GET / HTTP/1.1\r\n\r\n", b"")] * 3]:
            handshake, far = rig.accept()
            far.send(hello)
            await rig.end()
            assert rig.closed[-1] == handshake
            assert far.recv(100)[:1] == alert
            if alert:
                assert far.recv(100) == b""

    play(certificates, keystore, scenario)
    assert [record.message for record in caplog.records] == [
        "closing client:1: the TLS handshake failed: unsupported protocol",
        "closing client:1: the TLS handshake failed: http request (does the client use TLS?)",
    ]
