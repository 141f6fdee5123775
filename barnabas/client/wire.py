"""The few requests that reading and writing records need, in fixed versions without tags.

RULES    1. Each version is served by every broker from Kafka 2.1 to 4.3, so nothing is negotiated. SEARCH_RECORDS is an API of
            Barnabas alone.
         2. A response that ends early raises ClientError.
NOT HERE The batches inside (`record_batches.py`), connections (`cluster.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from barnabas.client.errors import ArgumentError, ClientError

T = TypeVar("T")
CLIENT_ID = "barnabas"
"""Without another one in the settings."""
MAX_TEXT_BYTES = (1 << 15) - 1
_SHOWN_CHARS = 40


class Api(Enum):
    """A request: its key and version."""

    PRODUCE = (0, 7)
    FETCH = (1, 10)
    LIST_OFFSETS = (2, 2)
    METADATA = (3, 4)
    FIND_COORDINATOR = (10, 1)
    INIT_PRODUCER_ID = (22, 1)
    ADD_PARTITIONS_TO_TXN = (24, 1)
    END_TXN = (26, 1)
    SEARCH_RECORDS = (30001, 0)


def request(api: Api, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A request with its header, without its length. Raises ArgumentError."""
    return struct.pack(">hhi", *api.value, correlation_id) + text(client_id) + body


def text(value: str | None) -> bytes:
    """A string; None is null. Raises ArgumentError."""
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    if len(encoded) > MAX_TEXT_BYTES:
        raise ArgumentError(f"{value[:_SHOWN_CHARS]}… is too long: texts have at most {MAX_TEXT_BYTES:,} bytes.")
    return struct.pack(">h", len(encoded)) + encoded


def array(items: Iterable[bytes]) -> bytes:
    """An array of encoded items."""
    parts = list(items)
    return struct.pack(">i", len(parts)) + b"".join(parts)


class Fields:
    """The fields of a response, read one after the other."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Big-endian numbers, with the letters of `struct`."""
        layout = ">" + layout
        try:
            found = struct.unpack_from(layout, self._data, self._at)
        except struct.error as failure:
            raise ClientError("A response of the cluster ends early.") from failure
        self._at += struct.calcsize(layout)
        return found

    def number(self, letter: str) -> int:
        """One number."""
        return self.numbers(letter)[0]

    def text(self) -> str:
        """A string; null is empty."""
        return self._bytes(self.number("h")).decode()

    def data(self) -> memoryview:
        """Bytes; null is empty."""
        return self._bytes_view(self.number("i"))

    def optional_data(self) -> bytes | None:
        """Bytes; None is null."""
        size = self.number("i")
        return None if size < 0 else self._bytes(size)

    def array(self, item: Callable[[], T]) -> list[T]:
        """An array; null is empty."""
        return [item() for _ in range(max(0, self.number("i")))]

    def _bytes(self, size: int) -> bytes:
        return bytes(self._bytes_view(size))

    def _bytes_view(self, size: int) -> memoryview:
        end = self._at + max(0, size)
        if end > len(self._data):
            raise ClientError("A response of the cluster ends early.")
        view = memoryview(self._data)[self._at : end]
        self._at = end
        return view
