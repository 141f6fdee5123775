"""Frames for fuzzing: valid ones with random values, and damaged ones."""

from __future__ import annotations

import random
from typing import Any

from protocol.codec import encode
from protocol.schema import Message, Wire, fields_of
from tests.oracle.values import is_flexible

_LENGTH_BOMBS = (
    b"\x7f\xff\xff\xff",  # as an int32 or a varint: larger than any frame
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff",
    b"\xc0\x84\x3d",  # a varint of 1,000,000
    b"\x00\x0f\x42\x41",  # an int32 of 1,000,001
    b"\x91\x4e",  # a varint of 10,001
    b"\x7f\xff",
    b"\x80\x80\x80\x80\x80\x80",
    b"\xff\xff\xff\xff",
    b"\xff\xff",
)


def valid_frame(cls: type[Message], version: int, rng: random.Random) -> bytes:
    """An encoded message with random values."""
    return encode(_message(cls, version, is_flexible(cls, version), rng), version)


def _message(cls: type[Message], version: int, flexible: bool, rng: random.Random) -> Message:
    values: dict[str, Any] = {}
    for field in fields_of(cls):
        if field.is_in(version):
            may_be_none = field.is_nullable_in(version) or (field.tag is not None and field.wire.kind == "struct")
            is_none = may_be_none and rng.random() < 0.3
            values[field.name] = None if is_none else _value(field.wire, version, flexible, rng)
    message = cls(**values)
    message.unknown_tagged_fields = None
    if flexible and rng.random() < 0.1:
        message.unknown_tagged_fields = {rng.randrange(50, 1000): rng.randbytes(3)}
    return message


def _value(wire: Wire, version: int, flexible: bool, rng: random.Random) -> Any:
    if wire.kind == "fixed":
        if wire.code == "16s":
            return rng.randbytes(16)
        return rng.randrange(2) if wire.code == "?" else rng.choice((0, 1, 5, 100))
    if wire.kind in ("string", "legacy_string"):
        return rng.choice(("", "a", "topic", "é", "x" * 130))
    if wire.kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 3, 61, 130)))
    if wire.kind == "array":
        assert wire.element is not None
        return [_value(wire.element, version, flexible, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    assert wire.message is not None
    return _message(wire.message, version, flexible, rng)


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """The frame with one to three random changes."""
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 3))):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[position:]
            case 1:
                data[position : position + 1] = bytes((rng.randrange(256),))
            case 2:
                bomb = rng.choice(_LENGTH_BOMBS)
                data[position : position + len(bomb)] = bomb
            case 3:
                del data[position : position + rng.randrange(1, 6)]
            case 4:
                data[position:position] = rng.randbytes(rng.randrange(1, 6))
            case _:
                data[position : position + 1] = bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF)),))
    return bytes(data)
