"""Varints, and texts of uuids and bytes.

FORMAT   uvarint  7 bits per byte, lowest first; the top bit is set if more bytes follow; at most 5 bytes and
                  31 bits, since it is a length, a count or a tag
         varint   zigzag (0, -1, 1, -2, ...) written as a uvarint of 32 or 64 bits
         uuid     16 bytes; as text url-safe base64 without padding, as Kafka prints it
         bytes    in JSON a string if they are UTF-8, otherwise {"base64":"/w=="}
RULES    1. A value that exceeds the buffer or its type's size raises MalformedRequest.
NOT HERE Strings, arrays, tagged fields: the compiled codecs inline them (`codec.py`). Signed varints of records are read in
         `record_codec.py`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Final, TypeAlias

from protocol.errors import MalformedRequest

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)
MAX_UUID_TEXT_LENGTH = 22
_MAX_UVARINT_BYTES: Final = 5


def uvarint(value: int) -> bytes:
    """Encodes a non-negative value as an unsigned varint."""
    if 0 <= value < _SMALL:
        return _SMALL_ONES[value]
    return _uvarint(value)


def _uvarint(value: int) -> bytes:
    assert value >= 0, "an unsigned varint cannot be negative"
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Encodes a signed 32- or 64-bit value as a zigzag varint (a varlong has the same bytes)."""
    if 0 <= value < _SMALL >> 1:
        return _SMALL_ONES[value << 1]
    return uvarint((value << 1) if value >= 0 else (-value << 1) - 1)


_SMALL: Final = 2048
_SMALL_ONES: Final = tuple(map(_uvarint, range(_SMALL)))
"""Encoded small values: most lengths and counts."""


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 31 bits; returns it and the position after it."""
    try:
        value = buffer[position]
        if value < 0x80:
            return value, position + 1
        byte = buffer[position + 1]
        if byte < 0x80:  # as in most lengths of record batches
            return value & 0x7F | byte << 7, position + 2
        return _read_long_uvarint(buffer, position)
    except IndexError:
        raise MalformedRequest("a varint runs past the end") from None


def _read_long_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_UVARINT_BYTES, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 31:
                raise MalformedRequest("a varint has more than 31 bits")
            return value, position
    raise MalformedRequest(f"a varint is longer than {_MAX_UVARINT_BYTES} bytes")


def uuid_text(uuid: bytes) -> str:
    """Formats a uuid as Kafka does: url-safe base64 without padding."""
    assert len(uuid) == len(ZERO_UUID), "a uuid has 16 bytes"
    text = binascii.b2a_base64(uuid, newline=False).rstrip(b"=")
    return text.replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def new_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """A random uuid of version 4, so none of the 100 reserved ones; its text does not start with a dash, as in Kafka."""
    while True:
        drawn = bytearray(random_bytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        uuid = bytes(drawn)
        if not uuid_text(uuid).startswith("-"):
            return uuid


def json_value(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as a JSON value: a string if they are UTF-8, otherwise an object with the field `base64`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(data, newline=False).decode("ascii")}


def uuid_from_text(text: str) -> bytes:
    """Parses a base64 uuid; raises ValueError with a sentence if it is invalid."""
    if len(text) > MAX_UUID_TEXT_LENGTH + 2:
        raise ValueError(f"{text[:32]!r}... is too long for a base64 uuid")
    padded = text.rstrip("=").replace("-", "+").replace("_", "/") + "=="
    try:
        uuid = binascii.a2b_base64(padded, strict_mode=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is not a base64 uuid") from None
    if len(uuid) != len(ZERO_UUID):
        raise ValueError(f"{text!r} is not a base64 uuid: it has {len(uuid)} bytes, not 16")
    return uuid
