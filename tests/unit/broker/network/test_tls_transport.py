"""An encrypted socket against a client of `ssl` (broker/network/tls_transport.py)."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import tempfile
from collections.abc import Iterator

import pytest

from broker.network.sender import RegionEnded, Sender
from broker.network.tls_transport import TURN_BYTES, TlsBuffers, TlsTransportLayer
from protocol.errors import MalformedRequest
from protocol.file_region import FileRegion
from tests.support.certificates import Certificates

SEED = 20


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.create("node", "/CN=node"))
    return context


class Pair:
    """The transport and a client, over a socket pair with small buffers."""

    def __init__(self, context: ssl.SSLContext, certificates: Certificates, version: ssl.TLSVersion) -> None:
        near, far = socket.socketpair()
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            end.setblocking(False)
        self.announced = 0
        self.transport = TlsTransportLayer(near, context, TlsBuffers())
        self.transport.on_buffered = self.announce
        client = ssl.create_default_context(cafile=certificates.ca)
        client.maximum_version = version
        self.client = client.wrap_socket(far, do_handshake_on_connect=False, server_hostname="localhost")
        done = [False, False]
        for _ in range(1000):
            if all(done):
                break
            done = [done[0] or self._server_handshake(), done[1] or self._client_handshake()]
        assert all(done), "the handshake ends"

    def announce(self) -> None:
        self.announced += 1

    def _server_handshake(self) -> bool:
        self.transport.receive_handshake()
        is_done = self.transport.step_handshake()
        return self.transport.flush() and is_done

    def _client_handshake(self) -> bool:
        try:
            self.client.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    def client_read(self, limit: int) -> bytes:
        """What the client has received; empty if nothing."""
        try:
            return self.client.recv(limit)
        except ssl.SSLWantReadError:
            return b""

    def close(self) -> None:
        self.transport.close()
        self.client.close()


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def pair(request: pytest.FixtureRequest, context: ssl.SSLContext, certificates: Certificates) -> Iterator[Pair]:
    pair = Pair(context, certificates, request.param)
    yield pair
    pair.close()


def exchanged(pair: Pair, content: bytes) -> bytes:
    """What arrives while the client sends `content`; receives as the connection does: again after an announcement."""
    choose, data, sent = random.Random(SEED), b"", 0
    for _ in range(10_000):
        if sent < len(content):
            with contextlib.suppress(ssl.SSLWantWriteError):
                sent += pair.client.send(content[sent : sent + 20_000])
        pair.announced = 1
        while pair.announced:
            pair.announced = 0
            space = bytearray(choose.choice([5, 100, 4096, 65536]))
            data += space[: pair.transport.receive(space) or 0]
        if len(data) == len(content):
            break
    return data


def test_parts_and_regions_arrive_in_order_over_a_full_socket(pair: Pair) -> None:
    choose = random.Random(SEED)
    with tempfile.TemporaryFile() as file:
        content = choose.randbytes(3 * 1024 * 1024)
        file.write(content)
        file.flush()
        sender, expected, arrived = Sender(pair.transport), b"", b""
        for size in (1, 100, 20_000, TURN_BYTES, 1_000_000):
            header = choose.randbytes(choose.randrange(1, 3 * size))
            position = choose.randrange(len(content) - size)
            expected += header + content[position : position + size] + b"tail"
            done = sender.send([header, FileRegion(file, position, size), b"", b"tail"])
            while not done:
                arrived += pair.client_read(choose.randrange(1, 70_000))
                done = sender.resume()
        assert sender.is_idle
        while len(arrived) < len(expected):
            arrived += pair.client_read(65536)
    is_equal = arrived == expected  # pytest would compare line by line
    assert is_equal
    assert pair.client_read(1) == b""


def test_nothing_is_reported_as_sent_that_the_kernel_does_not_have(pair: Pair) -> None:
    sender = Sender(pair.transport)
    assert not sender.send([bytes(100_000)])
    assert not sender.is_idle
    assert not pair.transport.flush()


def sizes_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is handed to the socket from now on, which takes all."""
    sizes: list[int] = []

    def send(data: bytes) -> int:
        sizes.append(len(data))
        return len(data)

    monkeypatch.setattr(pair.transport, "_send", send)
    return sizes


def test_a_call_encrypts_a_bounded_number_of_bytes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_sent(pair, monkeypatch)
    assert pair.transport.send(bytes(4 * TURN_BYTES), more=False) == TURN_BYTES
    assert TURN_BYTES < sum(sizes) < TURN_BYTES + 4096
    sizes.clear()
    with tempfile.TemporaryFile() as file:
        file.truncate(4 * TURN_BYTES)
        assert pair.transport.send_file(FileRegion(file, 0, 4 * TURN_BYTES), 0, 4 * TURN_BYTES) == TURN_BYTES
    assert sum(sizes) < TURN_BYTES + 4096


def test_bytes_before_a_region_wait_for_it(pair: Pair) -> None:
    assert pair.transport.send(b"header", more=True) == 6
    assert pair.client_read(100) == b""
    assert pair.transport.send(b"body", more=False) == 4
    assert pair.client_read(100) + pair.client_read(100) == b"headerbody"


def test_a_header_shares_a_send_with_the_region_behind_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_sent(pair, monkeypatch)
    with tempfile.TemporaryFile() as file:
        file.truncate(90_000)
        assert Sender(pair.transport).send([b"header", FileRegion(file, 0, 90_000)])
    assert len(sizes) == 1


def test_bytes_that_wait_for_an_empty_part_are_not_forgotten(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.transport, "_send", socket_is_full)
    sender = Sender(pair.transport)
    assert not sender.send([*[b"x"] * 256, b""])
    monkeypatch.undo()
    assert sender.resume()
    assert pair.client_read(1000) == b"x" * 256


def socket_is_full(data: bytes) -> int:
    raise BlockingIOError


def test_a_file_that_is_shorter_than_its_region_ends_the_connection(pair: Pair) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"short")
        file.flush()
        with pytest.raises(RegionEnded):
            Sender(pair.transport).send([FileRegion(file, 0, 10)])


def test_received_bytes_arrive_in_spaces_of_any_size(pair: Pair) -> None:
    content = random.Random(SEED).randbytes(100_000)
    is_equal = exchanged(pair, content) == content
    assert is_equal


def test_bytes_that_did_not_fit_are_announced(pair: Pair) -> None:
    pair.client.send(b"0123456789")
    space = bytearray(4)
    assert pair.transport.receive(space) == 4
    assert (pair.transport.has_buffered, pair.announced) == (True, 1)
    assert pair.transport.receive(bytearray(100)) == 6
    assert not pair.transport.has_buffered
    assert pair.transport.receive(space) is None


@pytest.mark.parametrize("is_announced", [True, False])
def test_the_end_of_the_stream_is_seen(pair: Pair, *, is_announced: bool) -> None:
    pair.client.send(b"last")
    if is_announced:
        with pytest.raises(ssl.SSLWantReadError):
            pair.client.unwrap()
    else:
        pair.client.shutdown(socket.SHUT_WR)
    assert pair.transport.receive(bytearray(100)) == 4
    assert pair.transport.receive(bytearray(100)) == 0


def test_garbage_after_the_handshake_is_a_violation(pair: Pair) -> None:
    os.write(pair.client.fileno(), b"garbage that is no record of TLS at all")
    with pytest.raises(MalformedRequest, match="invalid TLS record"):
        pair.transport.receive(bytearray(100))


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x20\0\x12\0\x03" + bytes(28), bytes(range(255))]
)
def test_garbage_instead_of_a_handshake_fails(context: ssl.SSLContext, garbage: bytes) -> None:
    near, far = socket.socketpair()
    transport = TlsTransportLayer(near, context, TlsBuffers())
    far.send(garbage)
    transport.receive_handshake()
    with pytest.raises(ssl.SSLError):
        transport.step_handshake()
    transport.close()
    far.close()


def test_a_peer_that_leaves_during_the_handshake_is_noticed(context: ssl.SSLContext) -> None:
    near, far = socket.socketpair()
    transport = TlsTransportLayer(near, context, TlsBuffers())
    far.send(b"\x16")
    transport.receive_handshake()
    assert not transport.step_handshake()
    far.close()
    with pytest.raises(ConnectionResetError):
        transport.receive_handshake()
    transport.close()
