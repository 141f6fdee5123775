"""Frames for fuzzing: valid ones with random values, and damaged ones."""

from __future__ import annotations

import random

from protocol.codec import encode
from protocol.schema import Message, Wire
from tests.support.sample_requests import Drawer

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


class _Messages(Drawer):
    """Random requests, responses and records, some with unknown tagged fields."""

    def __init__(self, rng: random.Random, *, is_flexible: bool) -> None:
        super().__init__(rng)
        self._is_flexible = is_flexible

    def struct(self, struct: Wire, version: int) -> Message:
        made = super().struct(struct, version)
        if self._is_flexible and self.rng.random() < 0.1:
            made.unknown_tagged_fields = {self.rng.randrange(50, 1000): self.rng.randbytes(3)}
        return made


def valid_frame(cls: type[Message], version: int, rng: random.Random) -> bytes:
    """An encoded message with random values."""
    return encode(_Messages(rng, is_flexible=version >= cls.FLEXIBLE_SINCE).message(cls, version), version)


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
