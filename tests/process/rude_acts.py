"""What a rude peer does to a broker, one act at a time; each is a row of `ACTS`.

RULES    1. No act waits for an answer that may not come: it stops sending, and the broker hangs up; or it asks
            something small behind what it sent; or its patience ends.
         2. What is drawn depends on the seed and, for names that the broker gives out, on its answers.
NOT HERE How many acts, and what the broker looks like afterwards (`fuzzing_peer.py`).
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

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
CLIENT_IDS = (None, "", "rude", "é" * 100)
HUNG_UP = (EOFError, OSError)
"""What a peer sees whose connection was ended; OSError is also the end of its patience."""


class Served(NamedTuple):
    """A version range that the broker has told of."""

    api_key: int
    min_version: int
    max_version: int


def served_by(bootstrap: str) -> list[Served]:
    """What ApiVersions says, as far as this project has the messages."""
    with RawClient(bootstrap) as client:
        rows = client.ask(ApiVersionsRequest(), 0).api_keys
    return [
        Served(row.api_key, max(row.min_version, APIS[row.api_key].request.MIN_VERSION), row.max_version)
        for row in rows
        if row.api_key in APIS
    ]


class RudePeer:
    """One peer: its dice, what it has learnt, a connection to ask on, and some that it keeps half used."""

    def __init__(self, bootstrap: str, served: list[Served], seed: int) -> None:
        self.bootstrap = bootstrap
        self.served = served
        self.rng = random.Random(seed)
        self.drawer = Drawer(self.rng)
        self._client: RawClient | None = None
        self._held: deque[socket.socket] = deque()

    @property
    def client(self) -> RawClient:
        """The connection to ask on; a new one after each that was lost."""
        if self._client is None:
            self._client = RawClient(self.bootstrap, PATIENCE_S)
        return self._client

    def lose(self) -> None:
        """Drop the connection to ask on."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def hold(self, held: socket.socket) -> None:
        """Keep a connection open, for a while."""
        self._held.append(held)
        if len(self._held) > HELD_OPEN:
            self._held.popleft().close()

    def close(self) -> None:
        """Drop everything."""
        self.lose()
        while self._held:
            self._held.popleft().close()

    # ------------------------------------------------------------ what is sent
    def connect(self) -> socket.socket:
        """A further connection."""
        host, port = self.bootstrap.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=5)

    def drawn(self) -> tuple[int, int]:
        """An API and a version."""
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
        """A well-formed request and its version."""
        api_key, version = self.drawn()
        return self.drawer.request(api_key, version), version

    def frame(self, api_key: int, version: int) -> bytes:
        """A well-formed request as a whole frame, its length in front."""
        return framed(self.header(api_key, version) + encode(self.drawer.request(api_key, version), version))

    def say(self, data: bytes) -> None:
        """Send bytes on a further connection, stop sending, and take what comes until the broker hangs up."""
        with self.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(PATIENCE_S)
            while connection.recv(65536):
                pass


def framed(data: bytes) -> bytes:
    """A frame: its length in front."""
    return struct.pack(">i", len(data)) + data


def reset(connection: socket.socket) -> None:
    """Hang up so that the broker is told at once, whatever it has sent or read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def try_everything(peer: RudePeer) -> None:
    """Each version of each API once."""
    for api_key, low, high in peer.served:
        for version in range(low, high + 1):
            peer.say(peer.frame(api_key, version))


def well_formed(peer: RudePeer) -> None:
    """A request of any API and version, whose answer can be read; or it is hung up on, which the log tells."""
    request, version = peer.request()
    try:
        peer.client.send(request, version)
        if not (request.API_KEY == ApiKey.PRODUCE and getattr(request, "acks", 1) == 0):
            peer.drawer.learn(peer.client.receive(request, version))
    except HUNG_UP:
        peer.lose()


def damaged_request(peer: RudePeer) -> None:
    """A request after a few accidents, mostly behind the header, and a small question behind it."""
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


def random_body(peer: RudePeer) -> None:
    """A valid header with anything behind it."""
    peer.say(framed(peer.header(*peer.drawn()) + peer.rng.randbytes(peer.rng.randrange(200))))


def random_frame(peer: RudePeer) -> None:
    """A frame of anything."""
    peer.say(framed(peer.rng.randbytes(peer.rng.randrange(1, 300))))


def random_bytes(peer: RudePeer) -> None:
    """Not even a length."""
    peer.say(peer.rng.randbytes(peer.rng.randrange(1, 2000)))


def half_a_frame(peer: RudePeer) -> None:
    """A frame that ends too soon; then the peer hangs up, resets, or does nothing."""
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


def absurd_length(peer: RudePeer) -> None:
    """A length that is no length, or promises too much; some bytes of it come."""
    data = struct.pack(">i", peer.rng.choice(LENGTHS)) + peer.rng.randbytes(peer.rng.choice((0, 10, 100_000)))
    if peer.rng.random() < 0.5:
        peer.say(data)
        return
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.sendall(data)
    peer.hold(connection)


def connects_and_drops(peer: RudePeer) -> None:
    """A burst of connections that say nothing or a little, closed or reset."""
    burst = [peer.connect() for _ in range(DROPS_AT_ONCE)]
    for connection in burst:
        with contextlib.suppress(OSError):
            if peer.rng.random() < 0.5:
                connection.sendall(peer.frame(*peer.drawn()))
        if peer.rng.random() < 0.5:
            reset(connection)
        else:
            connection.close()


def every_api_at_once(peer: RudePeer) -> None:
    """A request of every API of the listener, in any order, before anything is read; half the time nothing ever is."""
    rows = peer.rng.sample(peer.served, len(peer.served))
    frames = b"".join(peer.frame(key, peer.rng.randint(low, high)) for key, low, high in rows)
    if peer.rng.random() < 0.5:
        peer.say(frames)
        return
    with peer.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(frames)
        reset(connection)


def byte_by_byte(peer: RudePeer) -> None:
    """A well-formed request in the smallest packets."""
    with peer.connect() as connection, contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in peer.frame(*peer.drawn())[:300]:
            connection.sendall(bytes((byte,)))


def asks_and_never_reads(peer: RudePeer) -> None:
    """A consumer that asks for all there is, many times, and reads nothing."""
    request = fetch_request(11, {("plain", b"", 0): 0, ("plain", b"", 1): 0}, max_bytes=1 << 25)
    frame = framed(peer.header(ApiKey.FETCH, 11) + encode(request, 11))
    connection = peer.connect()
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        for _ in range(200):
            connection.send(frame)
    peer.hold(connection)


ACTS: dict[Callable[[RudePeer], None], int] = {
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
