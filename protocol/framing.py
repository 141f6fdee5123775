"""Frames: a length prefix around a header and a message; bytes in, frames out, and answers back into parts.

FORMAT   frame      i32 length of what follows, then header and message
         request    i16 API key, i16 version, i32 correlation id, nullable string client id
                    (+ tagged fields where the message is flexible)
         response   i32 correlation id (+ tagged fields where flexible; never for ApiVersions)
RULES    1. A length below zero or above the limit ends the connection before anything is allocated for it.
         2. A frame handed out is the receiver's own memory, writable: a produced batch is patched in place.
         3. Small frames are copied out of a scratch buffer that all connections share; a large one is received
            straight into its own memory, which grows with what comes: a promised length costs the peer its bytes first.
NOT HERE Sockets (`broker/network`), messages and versions (`codec.py`, `api.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from protocol.errors import MalformedRequest
from protocol.records import FileRegion

Part = bytes | bytearray | memoryview | FileRegion

_HEADER = Struct(">hhih")
_LENGTH = Struct(">i")
_LENGTH_AND_ID = Struct(">ii")
_PREFIX = 4
SCRATCH_BYTES = 65536
_FIRST_BYTES = 1024 * 1024


class FrameReader:
    """Cuts one connection's stream into frames; ask `space` where to receive, then tell `received` how much came."""

    __slots__ = ("_believed_bytes", "_filled", "_frame", "_length", "_max_frame_bytes", "_prefix", "_scratch")

    def __init__(self, max_frame_bytes: int, scratch: bytearray, believed_bytes: int = _FIRST_BYTES) -> None:
        """Take frames of up to `max_frame_bytes`; a promise of up to `believed_bytes` gets its memory at once."""
        self._max_frame_bytes = max_frame_bytes
        self._believed_bytes = believed_bytes
        self._scratch = scratch
        self._prefix = b""  # the first bytes of a length that has not come whole
        self._frame: bytearray | None = None  # a frame that has not come whole
        self._filled = 0  # bytes of it that have come
        self._length = 0  # bytes of it that are promised

    def space(self) -> bytearray | memoryview:
        """Where the next bytes go: the rest of a large frame, or the scratch buffer."""
        if self._frame is None:
            return self._scratch
        return memoryview(self._frame)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """The frames that `count` more bytes in `space` have completed, without their length prefix.

        Raises:
            MalformedRequest: a length is negative or above the limit.
        """
        frame = self._frame
        if frame is not None:
            self._filled += count
            if self._filled == len(frame):
                if self._filled == self._length:
                    self._frame = None
                    return [frame]
                self._frame = bytearray(min(2 * len(frame), self._length))
                self._frame[: len(frame)] = frame
            return []
        scratch = self._scratch
        if not self._prefix and count > _PREFIX:  # what nearly always comes: one whole small frame
            (length,) = _LENGTH.unpack_from(scratch)
            if length == count - _PREFIX:
                return [scratch[_PREFIX:count]]
        received = memoryview(scratch)[:count]
        return self._cut(memoryview(self._prefix + received) if self._prefix else received)

    def _cut(self, data: memoryview) -> list[bytearray]:
        frames: list[bytearray] = []
        position, end = 0, len(data)
        self._prefix = b""
        while end - position >= _PREFIX:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 <= length <= self._max_frame_bytes:
                raise MalformedRequest(f"frame of {length} bytes, the limit is {self._max_frame_bytes}")
            start = position + _PREFIX
            position = start + length
            if position > end:
                self._begin_large(data[start:end], length)
                return frames
            frames.append(bytearray(data[start:position]))
        self._prefix = bytes(data[position:end])
        return frames

    def _begin_large(self, beginning: memoryview, length: int) -> None:
        """Receive the rest of a frame into memory of its own."""
        frame = bytearray(min(length, max(self._believed_bytes, 2 * len(beginning))))
        frame[: len(beginning)] = beginning
        self._frame, self._filled, self._length = frame, len(beginning), length


class RequestHeader(NamedTuple):
    """What stands before every request, and where the message begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


def parse_request_header(frame: bytearray) -> RequestHeader:
    """The fixed part of a request's header; a flexible header's tagged fields begin at `end`.

    Raises:
        MalformedRequest: the frame is too short, or the client id is no text.
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
    try:
        client_id = frame[_HEADER.size : end].decode()
    except UnicodeDecodeError:
        raise MalformedRequest("client id is no UTF-8 text") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def frame_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str, parts: list[Part], *, flexible_header: bool
) -> list[bytes | bytearray | memoryview]:
    """The pieces of an encoded request, whose records are in memory, with length and header before them."""
    name = client_id.encode()
    header = _HEADER.pack(api_key, api_version, correlation_id, len(name)) + name + (b"\0" if flexible_header else b"")
    pieces: list[bytes | bytearray | memoryview] = []
    for part in parts:
        assert not isinstance(part, FileRegion), "what is asked is in memory"
        pieces.append(part)
    length = len(header) + sum(map(len, pieces))
    return [_LENGTH.pack(length) + header, *pieces]


def frame_response(correlation_id: int, parts: list[Part], *, flexible_header: bool) -> list[Part]:
    """The parts of an encoded response with length and header before them."""
    length = _PREFIX + flexible_header
    for part in parts:
        length += part.length if isinstance(part, FileRegion) else len(part)
    header = _LENGTH_AND_ID.pack(length, correlation_id)
    if flexible_header:
        header += b"\0"
    first = parts[0] if parts else b""
    if isinstance(first, FileRegion):
        return [header, *parts]
    return [b"".join((header, first)), *parts[1:]]
