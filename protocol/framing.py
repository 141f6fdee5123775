"""Splits a connection's byte stream into frames, and frames requests and responses.

FORMAT   frame      i32 length of the rest, then header and message
         request    i16 API key, i16 version, i32 correlation id, nullable string client id
                    (+ tagged fields in a flexible version)
         response   i32 correlation id (+ tagged fields in a flexible version; never for ApiVersions)
RULES    1. A length below zero or above the limit is refused before any allocation.
         2. A returned frame is a writable buffer of its own: produced batches are patched in place.
         3. Small frames are copied from a scratch buffer that all connections share. A large frame is received
            into its own buffer, which grows with the received bytes: a declared length alone reserves little memory. Only as
            much as an earlier frame of the connection had is allocated at once.
NOT HERE Sockets (`broker/network`), messages and versions (`codec.py`, `api.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from protocol.codegen import LONGEST_SAFE_STRING, MAX_STRING_LENGTH
from protocol.errors import MalformedRequest
from protocol.file_region import FileRegion, Region, ScatteredRegion

Part = bytes | bytearray | memoryview | Region

_HEADER = Struct(">hhih")
_LENGTH = Struct(">i")
_LENGTH_AND_ID = Struct(">ii")
_PREFIX = 4
SCRATCH_BYTES = 65536
_INITIAL_BYTES = 1024 * 1024
_FIRST_BYTES = 16 * 1024
"""The first allocation for a large frame, if the connection has sent none before."""
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"PRI ", b"OPTI", b"CONN")
_new_tuple = tuple.__new__


class FrameReader:
    """Splits one connection's stream into frames: receive into `space`, then pass the number of bytes to `received`."""

    __slots__ = (
        "_filled", "_frame", "_largest", "_length", "_prefix", "_scratch", "initial_bytes", "max_frame_bytes",
    )  # fmt: skip

    def __init__(self, max_frame_bytes: int, scratch: bytearray, initial_bytes: int = _INITIAL_BYTES) -> None:
        """Accept frames of up to `max_frame_bytes`; of a frame, at most `initial_bytes` are allocated before they arrive."""
        self.max_frame_bytes = max_frame_bytes
        """The limit of the frames that begin later."""
        self.initial_bytes = initial_bytes
        """The most bytes that are allocated for a frame before they arrive, after an earlier frame of that size."""
        self._scratch = scratch
        self._prefix = b""  # the received part of an incomplete length
        self._frame: bytearray | None = None  # an incomplete frame
        self._filled = 0  # received bytes of `_frame`
        self._length = 0  # declared length of `_frame`
        self._largest = _FIRST_BYTES  # of the large frames that are complete

    def space(self) -> bytearray | memoryview:
        """The buffer for the next bytes: the rest of a large frame, or the scratch buffer."""
        if self._frame is None:
            return self._scratch
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """Returns the frames, without length prefix, that `count` more bytes in `space` complete.

        Raises:
            MalformedRequest: a length is negative or above the limit.
        """
        frame = self._frame
        if frame is not None:
            self._filled += count
            if self._filled == len(frame):
                if self._filled == self._length:
                    self._frame = None
                    self._largest = max(self._largest, self._filled)
                    return [frame]
                self._frame = bytearray(min(2 * len(frame), self._length))
                self._frame[: len(frame)] = frame
            return []
        scratch = self._scratch
        if not self._prefix and count > _PREFIX:  # the usual case: one complete small frame
            (length,) = _LENGTH.unpack_from(scratch)
            if length == count - _PREFIX and length <= self.max_frame_bytes:
                return [scratch[_PREFIX:count]]
        received = memoryview(scratch)[:count]
        return self._split(memoryview(self._prefix + received) if self._prefix else received)

    def release(self) -> None:
        """Free the buffer of an incomplete frame: no more bytes are received."""
        self._frame = None

    def _split(self, data: memoryview) -> list[bytearray]:
        frames: list[bytearray] = []
        position, end = 0, len(data)
        self._prefix = b""
        while end - position >= _PREFIX:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= self.max_frame_bytes:
                raise MalformedRequest(_describe_refused(length, self.max_frame_bytes))
            start = position + _PREFIX
            position = start + length
            if position > end:
                self._start_large_frame(data[start:end], length)
                return frames
            frames.append(bytearray(data[start:position]))
        self._prefix = bytes(data[position:end])
        return frames

    def _start_large_frame(self, beginning: memoryview, length: int) -> None:
        """Receive the rest of a frame into its own buffer."""
        frame = bytearray(min(length, max(min(self.initial_bytes, self._largest), 2 * len(beginning))))
        frame[: len(beginning)] = beginning
        self._frame, self._filled, self._length = frame, len(beginning), length


def _describe_refused(length: int, limit: int) -> str:
    """Why a length is refused; the first bytes of other protocols are named, since such clients have the wrong port."""
    first = length.to_bytes(_PREFIX, "big", signed=True)
    if first.startswith(_TLS_HANDSHAKE):
        return "the client uses TLS, but this listener does not (listener.security.protocol.map)"
    if first in _HTTP_METHODS:
        return "the client uses HTTP; this is a listener of Kafka's protocol"
    return f"frame of {length} bytes, the limit is {limit}"


class RequestHeader(NamedTuple):
    """The header of a request, and the position after it."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


def parse_request_header(frame: bytearray) -> RequestHeader:
    """Parses the fixed part of a request's header; the tagged fields of a flexible header begin at `end`.

    Raises:
        MalformedRequest: the frame is too short, or the client id cannot be encoded again.
    """
    if len(frame) < _HEADER.size:
        raise MalformedRequest(f"frame of {len(frame)} bytes is shorter than a request header")
    api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    end = _HEADER.size
    if length < 0:
        return RequestHeader(api_key, api_version, correlation_id, None, end)
    end += length
    if end > len(frame):
        raise MalformedRequest("client id runs past the end of the frame")
    client_id = frame[_HEADER.size : end].decode("utf-8", "replace")  # as other strings
    if length > LONGEST_SAFE_STRING and len(client_id.encode()) > MAX_STRING_LENGTH:
        raise MalformedRequest("client id is too long when its invalid bytes are replaced")
    return _new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, end))  # half the time of a call


def frame_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str, parts: list[Part], *, flexible_header: bool
) -> list[bytes | bytearray | memoryview]:
    """The parts of an encoded request, preceded by length and header. Its records must be in memory."""
    name = client_id.encode()
    header = _HEADER.pack(api_key, api_version, correlation_id, len(name)) + name + (b"\0" if flexible_header else b"")
    pieces: list[bytes | bytearray | memoryview] = []
    for part in parts:
        assert not isinstance(part, FileRegion | ScatteredRegion), "a request has no file regions"
        pieces.append(part)
    length = len(header) + sum(map(len, pieces))
    return [_LENGTH.pack(length) + header, *pieces]


def frame_response(correlation_id: int, parts: list[Part], *, flexible_header: bool) -> list[Part]:
    """The parts of an encoded response, preceded by length and header."""
    length = _PREFIX + flexible_header + sum(map(len, parts))
    header = _LENGTH_AND_ID.pack(length, correlation_id)
    if flexible_header:
        header += b"\0"
    first = parts[0] if parts else b""
    if isinstance(first, FileRegion | ScatteredRegion):
        return [header, *parts]
    return [b"".join((header, first)), *parts[1:]]
