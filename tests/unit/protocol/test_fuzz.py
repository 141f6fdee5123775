"""Any bytes decode to a message or raise MalformedRequest (protocol/codec.py rule 1)."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from protocol.api import APIS
from protocol.codec import decoder, encode, request_decoder
from protocol.errors import MalformedRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message, blank, fields_of
from tests.oracle.mutations import damaged, valid_frame
from tests.oracle.values import VERSIONS, version_id
from tests.support.seeds import seed_of

FRAMES = int(os.environ.get("FUZZ_FRAMES", "50000"))
SEED = seed_of("FUZZ_SEED")
REPLAY = f"replay with FUZZ_SEED={SEED} FUZZ_FRAMES={FRAMES}"


REQUESTS = {api.request for api in APIS.values()}


def peers_decoder(cls: type[Message], version: int) -> Any:
    """The decoder for the bytes of a peer."""
    return request_decoder(cls, version) if cls in REQUESTS else decoder(cls, version)


def test_any_bytes_decode_or_are_malformed() -> None:
    """Random bytes, and valid frames that were truncated, changed, or got a huge length."""
    print(REPLAY)
    rng = random.Random(SEED)
    corpus = [
        (cls, version, peers_decoder(cls, version), [valid_frame(cls, version, rng) for _ in range(8)])
        for cls, version in VERSIONS
    ]
    accepted = 0
    for number in range(FRAMES):
        cls, version, decode, frames = rng.choice(corpus)
        frame = rng.randbytes(rng.randrange(200)) if number % 4 == 0 else damaged(rng.choice(frames), rng)
        try:
            message, end = decode(frame, 0)
        except MalformedRequest:
            continue
        except BaseException as error:  # noqa: BLE001 - that there is none is what is tested
            pytest.fail(f"{cls.__name__} v{version} on {frame.hex()}: {error!r}; {REPLAY}")
        accepted += 1
        assert end <= len(frame), f"{cls.__name__} v{version} on {frame.hex()} ends at {end}; {REPLAY}"
        if accepted % 8 == 0:
            assert_stable(cls, version, decode, message)
    assert FRAMES < 1000 or 0 < accepted < FRAMES, "the frames are too wild, or too tame, to test anything"


def assert_stable(cls: type[Message], version: int, decode: Callable[..., Any], message: Message) -> None:
    """What was accepted can be written, and is then read as the same message."""
    again = encode(message, version)
    found, end = decode(again, 0)
    omit_default_structs(message)
    same = found == message or repr(found) == repr(message)  # NaN does not equal itself
    assert (same, end) == (True, len(again)), f"{cls.__name__} v{version} {message}; {REPLAY}"


def omit_default_structs(message: Message) -> None:
    """Replace tagged structs that have only default values by None, as writing them does (protocol/schema.py rule 5)."""
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                omit_default_structs(inner)
        is_omitted = field.tag is not None and not field.has_null_marker and isinstance(value, Message)
        if is_omitted and value == blank(type(value)):
            setattr(message, field.name, None)


@pytest.mark.parametrize(("cls", "version"), VERSIONS, ids=version_id)
def test_every_truncation_is_malformed(cls: type[Message], version: int) -> None:
    rng = random.Random(f"{cls.__name__} {version}")
    for _ in range(3):
        frame = valid_frame(cls, version, rng)
        for size in range(len(frame)):
            for buffer in (frame[:size], memoryview(frame)[:size]):
                with pytest.raises(MalformedRequest):
                    peers_decoder(cls, version)(buffer, 0)


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param((MetadataRequest, 0, b"\x7f\xff\xff\xff"), id="array of 2**31"),
        pytest.param((MetadataRequest, 0, b"\x00\x0f\x42\x41" + bytes(100)), id="array of 1,000,001"),
        pytest.param((MetadataRequest, 9, b"\xff\xff\xff\xff\x07" + bytes(100)), id="compact array of 2**31"),
        pytest.param((MetadataRequest, 9, b"\x00\x01\x01\x01\xff\xff\xff\xff\x07"), id="tagged fields"),
        pytest.param((MetadataRequest, 9, b"\x00\x01\x01\x01\x01\x32\xff\xff\xff\xff\x07"), id="a tagged field's size"),
        pytest.param((MetadataRequest, 9, b"\x02\xff\xff\xff\xff\x07"), id="a compact string"),
        pytest.param((MetadataRequest, 0, b"\x00\x00\x00\x01\x7f\xff"), id="a string"),
        pytest.param((FetchRequest, 7, bytes(29) + b"\0\0\0\1\0\0\x7f\xff\xff\xff"), id="an array of numbers"),
    ],
)
def test_a_length_bomb_allocates_nothing(bomb: tuple[type[Message], int, bytes]) -> None:
    cls, version, frame = bomb
    decode = decoder(cls, version)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            decode(frame, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000
