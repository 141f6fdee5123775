"""The acts of a malicious peer, one per row of `ACTS`.

RULES    1. No act waits for a response that may not arrive: it stops sending until the broker closes the connection, or sends
            a small request behind, or times out.
         2. Random choices depend on the seed and, for names that the broker assigns, on its responses.
NOT HERE The number of acts, and the state of the broker afterwards (`fuzzing_peer.py`).
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from protocol.api import APIS, ApiKey, request_header_version
from protocol.codec import encode
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import ApiVersionsRequest
from protocol.schema import Message
from tests.oracle.mutations import damaged
from tests.support.loading import fetch_request
from tests.support.raw_client import RawClient
from tests.support.sample_requests import Drawer

PATIENCE_S = 0.5
DROPS_AT_ONCE = 20
HELD_OPEN = 100
LARGEST_FRAME = 100 * 1024 * 1024
SENTINEL = 0x5E47
"""The correlation id of a question that is asked behind something else."""

LENGTHS = (-1, -(2**31), 0, 1, 7, 2**31 - 1, LARGEST_FRAME, LARGEST_FRAME + 1, 0x16030102, 0x47455420)
CLIENT_IDS = (None, "", "odd", "é" * 100)
HUNG_UP = (EOFError, OSError)
"""What a peer sees whose connection was ended; OSError is also the end of its patience."""


class Served(NamedTuple):
    """A version range of the broker."""

    api_key: int
    min_version: int
    max_version: int


def served_by(bootstrap: str) -> list[Served]:
    """The versions in ApiVersions that this project has messages for."""
    with RawClient(bootstrap) as client:
        rows = client.ask(ApiVersionsRequest(), 0).api_keys
    return [
        Served(row.api_key, max(row.min_version, APIS[row.api_key].request.MIN_VERSION), row.max_version)
        for row in rows
        if row.api_key in APIS
    ]


class MaliciousPeer:
    """One peer: its random generator, names from responses, and its connections."""

    def __init__(self, bootstrap: str, served: list[Served], seed: int) -> None:
        self.bootstrap = bootstrap
        self.served = served
        self.rng = random.Random(seed)
        self.drawer = Drawer(self.rng)
        self._client: RawClient | None = None
        self._held: deque[socket.socket] = deque()

    @property
    def acts(self) -> Mapping[Callable[[Any], None], int]:
        """What it does, and how often."""
        return ACTS

    @property
    def client(self) -> RawClient:
        """The connection for requests; a new one after a failure."""
        if self._client is None:
            self._client = RawClient(self.bootstrap, PATIENCE_S)
        return self._client

    def lose(self) -> None:
        """Drops the connection for requests."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def hold(self, held: socket.socket) -> None:
        """Keeps a connection open for a while."""
        self._held.append(held)
        if len(self._held) > HELD_OPEN:
            self._held.popleft().close()

    def close(self) -> None:
        """Drops all connections."""
        self.lose()
        while self._held:
            self._held.popleft().close()

    # ------------------------------------------------------------ what is sent
    def connect(self) -> socket.socket:
        """Opens another connection."""
        host, port = self.bootstrap.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=5)

    def drawn(self) -> tuple[int, int]:
        """A random API and version."""
        api_key, low, high = self.rng.choice(self.served)
        return api_key, self.rng.randint(low, high)

    def header(self, api_key: int, version: int, correlation_id: int = 1) -> bytes:
        """A valid header."""
        client_id = self.rng.choice(CLIENT_IDS)
        header = RequestHeader(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
        return encode(header, request_header_version(api_key, version))

    def request(self) -> tuple[Message, int]:
        """A valid request and its version."""
        api_key, version = self.drawn()
        return self.drawer.request(api_key, version), version

    def frame(self, api_key: int, version: int) -> bytes:
        """A valid request as a frame."""
        return framed(self.header(api_key, version) + encode(self.drawer.request(api_key, version), version))

    def say(self, data: bytes) -> None:
        """Sends bytes on a new connection, stops sending, and reads until the broker closes it."""
        with self.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(PATIENCE_S)
            while connection.recv(65536):
                pass


def framed(data: bytes) -> bytes:
    """A frame with its length."""
    return struct.pack(">i", len(data)) + data


def reset(connection: socket.socket) -> None:
    """Closes with a reset, whatever is unsent or unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def try_everything(peer: MaliciousPeer) -> None:
    """Each version of each API once."""
    for api_key, low, high in peer.served:
        for version in range(low, high + 1):
            peer.say(peer.frame(api_key, version))


def well_formed(peer: MaliciousPeer) -> None:
    """A valid request of any API and version; the response is readable, or the broker closes the connection."""
    request, version = peer.request()
    try:
        peer.client.send(request, version)
        if not (request.API_KEY == ApiKey.PRODUCE and getattr(request, "acks", 1) == 0):
            peer.drawer.learn(peer.client.receive(request, version))
    except HUNG_UP:
        peer.lose()


def damaged_request(peer: MaliciousPeer) -> None:
    """A request with some damage, mostly behind the header, and a small request behind it."""
    api_key, version = peer.drawn()
    header, body = peer.header(api_key, version), encode(peer.drawer.request(api_key, version), version)
    frame = header + damaged(body, peer.rng) if peer.rng.random() < 0.9 else damaged(header + body, peer.rng)
    sentinel = peer.header(ApiKey.API_VERSIONS, 0, SENTINEL)
    try:
        peer.client.socket.sendall(framed(frame) + framed(sentinel))
        while struct.unpack_from(">i", peer.client.receive_frame())[0] != SENTINEL:
            pass
    except HUNG_UP:
        peer.lose()


def random_body(peer: MaliciousPeer) -> None:
    """A valid header with random bytes."""
    peer.say(framed(peer.header(*peer.drawn()) + peer.rng.randbytes(peer.rng.randrange(200))))


def random_frame(peer: MaliciousPeer) -> None:
    """A frame of random bytes."""
    peer.say(framed(peer.rng.randbytes(peer.rng.randrange(1, 300))))


def random_bytes(peer: MaliciousPeer) -> None:
    """Random bytes without a valid length."""
    peer.say(peer.rng.randbytes(peer.rng.randrange(1, 2000)))


def half_a_frame(peer: MaliciousPeer) -> None:
    """An incomplete frame; then the peer closes, resets, or does nothing."""
    frame = peer.frame(*peer.drawn())
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.sendall(frame[: peer.rng.randrange(len(frame))])
    match peer.rng.randrange(3):
        case 0:
            connection.close()
        case 1:
            reset(connection)
        case _:
            peer.hold(connection)


def absurd_length(peer: MaliciousPeer) -> None:
    """An invalid or too large length, and some bytes."""
    data = struct.pack(">i", peer.rng.choice(LENGTHS)) + peer.rng.randbytes(peer.rng.choice((0, 10, 100_000)))
    if peer.rng.random() < 0.5:
        peer.say(data)
        return
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.sendall(data)
    peer.hold(connection)


def connects_and_drops(peer: MaliciousPeer) -> None:
    """A burst of connections with few bytes, closed or reset."""
    burst = [peer.connect() for _ in range(DROPS_AT_ONCE)]
    for connection in burst:
        with contextlib.suppress(OSError):
            if peer.rng.random() < 0.5:
                connection.sendall(peer.frame(*peer.drawn()))
        if peer.rng.random() < 0.5:
            reset(connection)
        else:
            connection.close()


def every_api_at_once(peer: MaliciousPeer) -> None:
    """A request of every API in random order before anything is read; half the time nothing is read."""
    rows = peer.rng.sample(peer.served, len(peer.served))
    frames = b"".join(peer.frame(key, peer.rng.randint(low, high)) for key, low, high in rows)
    if peer.rng.random() < 0.5:
        peer.say(frames)
        return
    with peer.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(frames)
        reset(connection)


def byte_by_byte(peer: MaliciousPeer) -> None:
    """A valid request in the smallest packets."""
    with peer.connect() as connection, contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in peer.frame(*peer.drawn())[:300]:
            connection.sendall(bytes((byte,)))


def asks_and_never_reads(peer: MaliciousPeer) -> None:
    """A consumer that requests everything, many times, and reads nothing."""
    request = fetch_request(11, {("plain", b"", 0): 0, ("plain", b"", 1): 0}, max_bytes=1 << 25)
    frame = framed(peer.header(ApiKey.FETCH, 11) + encode(request, 11))
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        for _ in range(200):
            connection.send(frame)
    peer.hold(connection)


ACTS: dict[Callable[[MaliciousPeer], None], int] = {
    well_formed: 300,
    damaged_request: 300,
    random_body: 30,
    random_frame: 20,
    random_bytes: 20,
    half_a_frame: 30,
    absurd_length: 20,
    connects_and_drops: 10,
    every_api_at_once: 10,
    byte_by_byte: 3,
    asks_and_never_reads: 2,
}
"""Each act and how often it comes, beside the others."""
