"""A proxy for one broker that records every Fetch request and its response.

RULES    1. Clients never bypass it: the broker's addresses in responses are replaced by the proxy's.
         2. Other requests and responses pass unchanged, byte for byte and in order.
         3. An exchange is recorded before its response is forwarded.
NOT HERE Clusters: every address is taken for that of the one broker.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from typing import Any, NamedTuple, Self

from protocol.api import APIS, ApiKey, request_header_version, response_header_version
from protocol.codec import decode, encode
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.messages.produce_fetch import FetchRequest, FetchResponse
from protocol.records import BatchHeader, headers
from tests.support.raw_client import receive_frame

_READ = frozenset({ApiKey.FETCH, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER})
_KEY_AND_VERSION = struct.Struct(">hh")
_LENGTH = struct.Struct(">i")


class Exchange(NamedTuple):
    """A Fetch request and its response."""

    version: int
    request: FetchRequest
    answer: FetchResponse
    waited_ms: float
    """From when the request was passed on until the answer came: never less than the broker waited."""

    @property
    def batches(self) -> list[BatchHeader]:
        """The headers of all complete batches, partition after partition."""
        return [header for data in self._partitions() for _, header in headers(data.records or b"")]

    @property
    def record_bytes(self) -> int:
        """All records, including an incomplete batch."""
        return sum(len(data.records or b"") for data in self._partitions())

    @property
    def has_error(self) -> bool:
        """Whether a partition has an error."""
        return self.answer.error_code != 0 or any(data.error_code for data in self._partitions())

    def _partitions(self) -> list[Any]:
        return [data for topic in self.answer.responses for data in topic.partitions]


class _Asked(NamedTuple):
    api_key: int
    version: int
    request: Any
    at: float


class WatchingProxy:
    """Listens during the `with` block."""

    def __init__(self, upstream: str) -> None:
        host, port = upstream.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._host, self._port = self._listening.getsockname()
        self._open: list[socket.socket] = [self._listening]
        self.fetches: list[Exchange] = []

    @property
    def bootstrap(self) -> str:
        """The bootstrap server for clients."""
        return f"{self._host}:{self._port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):  # its peer was first
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    # ------------------------------------------------------------ connections
    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the block was left
            while True:
                client, _ = self._listening.accept()
                broker = socket.create_connection(self._upstream)
                self._open += [client, broker]
                requested: deque[_Asked] = deque()
                for pump in (self._pass_requests, self._pass_answers):
                    threading.Thread(target=pump, args=(client, broker, requested), daemon=True).start()

    def _pass_requests(self, client: socket.socket, broker: socket.socket, requested: deque[_Asked]) -> None:
        with _both(client, broker):
            while True:
                frame = receive_frame(client)
                api_key, version = _KEY_AND_VERSION.unpack_from(frame)
                request = _request_in(frame, api_key, version) if api_key in _READ else None
                requested.append(_Asked(api_key, version, request, time.monotonic()))
                broker.sendall(_LENGTH.pack(len(frame)) + frame)

    def _pass_answers(self, client: socket.socket, broker: socket.socket, requested: deque[_Asked]) -> None:
        with _both(client, broker):
            while True:
                frame = receive_frame(broker)
                question = requested.popleft()
                if question.request is not None:
                    frame = self._look_at(question, frame)
                client.sendall(_LENGTH.pack(len(frame)) + frame)

    def _look_at(self, question: _Asked, frame: bytes) -> bytes:
        """Records a Fetch; replaces addresses by the proxy's."""
        api_key, version = question.api_key, question.version
        header_version = response_header_version(api_key, version)
        header = decode(ResponseHeader, header_version, frame)
        written = encode(header, header_version)
        answer: Any = decode(APIS[api_key].response, version, frame, len(written))
        if api_key == ApiKey.FETCH:
            waited_ms = (time.monotonic() - question.at) * 1000
            self.fetches.append(Exchange(version, question.request, answer, waited_ms))
            return frame
        for node in self._addresses_in(answer):
            if node.port > 0:  # 0: an error instead of an address
                node.host, node.port = self._host, self._port
        return written + encode(answer, version)

    @staticmethod
    def _addresses_in(answer: Any) -> list[Any]:
        if hasattr(answer, "brokers"):
            return list(answer.brokers)
        return [answer, *answer.coordinators]


@contextlib.contextmanager
def _both(client: socket.socket, broker: socket.socket) -> Any:
    """Closes both sides when one is closed."""
    try:
        with contextlib.suppress(OSError, EOFError):
            yield
    finally:
        for connection in (client, broker):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _request_in(frame: bytes, api_key: int, version: int) -> Any:
    header_version = request_header_version(api_key, version)
    header = decode(RequestHeader, header_version, frame)
    return decode(APIS[api_key].request, version, frame, len(encode(header, header_version)))
