"""Splitting a byte stream into frames, and framing responses."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from protocol.errors import MalformedRequest
from protocol.file_region import FileRegion
from protocol.framing import FrameReader, frame_response, parse_request_header


def feed(reader: FrameReader, data: bytes, sizes: list[int]) -> list[bytes]:
    """Passes `data` in pieces of the given sizes, as a socket would; returns the frames."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(data):
        space = reader.space()
        count = min(len(space), sizes[turn % len(sizes)], len(data) - position)
        space[:count] = data[position : position + count]
        frames += [bytes(frame) for frame in reader.received(count)]
        position += count
        turn += 1
    return frames


@given(st.lists(st.binary(max_size=400), max_size=8), st.lists(st.integers(1, 300), min_size=1, max_size=5))
@seed(20261121)
def test_frames_are_complete_for_any_segmentation_of_the_stream(bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    assert feed(FrameReader(1000, bytearray(64)), stream, sizes) == bodies


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_invalid_length_is_malformed(length: int) -> None:
    reader = FrameReader(1000, bytearray(64))
    with pytest.raises(MalformedRequest):
        feed(reader, struct.pack(">i", length) + b"x", [64])


def test_a_complete_frame_above_the_limit_is_malformed() -> None:
    reader = FrameReader(1000, bytearray(4096))
    with pytest.raises(MalformedRequest, match="frame of 1001 bytes, the limit is 1000"):
        feed(reader, struct.pack(">i", 1001) + bytes(1001), [4096])


def test_a_declared_length_allocates_little_memory() -> None:
    """A declared length of 100 MiB with 100 received bytes allocates 16 KiB."""
    reader = FrameReader(100 << 20, bytearray(1024))
    assert feed(reader, struct.pack(">i", 100 << 20) + bytes(100), [1024]) == []
    assert reader._frame is not None
    assert len(reader._frame) <= 16 << 10


@pytest.mark.parametrize(("earlier", "allocated"), [(300_000, 300_000), (3_000_000, 1 << 20), (5_000, 16 << 10)])
def test_as_much_as_an_earlier_frame_had_is_allocated_at_once(earlier: int, allocated: int) -> None:
    reader = FrameReader(100 << 20, bytearray(1024))
    assert len(feed(reader, struct.pack(">i", earlier) + bytes(earlier), [100_000])) == 1
    assert feed(reader, struct.pack(">i", 90 << 20) + bytes(100), [1024]) == []
    assert reader._frame is not None
    assert len(reader._frame) == allocated


def test_a_large_frame_is_received_in_growing_buffers() -> None:
    body = random.Random(3).randbytes(5_000_001)
    assert feed(FrameReader(1 << 24, bytearray(4096)), struct.pack(">i", len(body)) + body, [70_000]) == [body]


def test_two_readers_can_share_a_scratch_buffer() -> None:
    scratch = bytearray(16)
    one, two = FrameReader(100, scratch), FrameReader(100, scratch)
    first, second = struct.pack(">i", 12) + b"a" * 12, struct.pack(">i", 12) + b"b" * 12
    frames = feed(one, first[:2], [2]) + feed(two, second[:7], [7]) + feed(one, first[2:], [3])
    assert frames + feed(two, second[7:], [3]) == [b"a" * 12, b"b" * 12]


def test_a_request_header_has_an_optional_client_id() -> None:
    frame = bytearray(struct.pack(">hhih", 1, 4, 7, 2) + b"me" + b"rest")
    assert parse_request_header(frame) == (1, 4, 7, "me", 12)
    assert parse_request_header(bytearray(struct.pack(">hhih", 1, 4, 7, -1)))[3:] == (None, 10)


def test_a_client_id_that_is_not_utf_8_is_accepted() -> None:
    frame = bytearray(struct.pack(">hhih", 1, 4, 7, 5) + "käfer".encode("latin-1"))
    assert parse_request_header(frame).client_id == "k\N{REPLACEMENT CHARACTER}fer"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0" * 9,
        struct.pack(">hhih", 1, 4, 7, 3) + b"me",
        struct.pack(">hhih", 1, 4, 7, 10_923) + b"\xff" * 10_923,
    ],
    ids=["empty", "short", "client id past the end", "client id too long"],
)
def test_an_invalid_request_header_is_malformed(frame: bytes) -> None:
    """Also a client id that is too long for a string when its invalid bytes are replaced."""
    with pytest.raises(MalformedRequest):
        parse_request_header(bytearray(frame))


def test_random_streams_raise_nothing_but_malformed_request() -> None:
    number = 7
    rng = random.Random(number)
    for turn in range(20_000):
        data = rng.randbytes(rng.randrange(1, 60))
        try:
            for frame in feed(FrameReader(200, bytearray(32)), data, [rng.randrange(1, 40)]):
                parse_request_header(bytearray(frame))
        except MalformedRequest:
            pass
        except Exception as error:
            raise AssertionError(f"seed {number}, turn {turn}") from error


def test_the_length_of_a_response_includes_its_regions() -> None:
    class NoFile:
        def fileno(self) -> int:
            return -1

    region = FileRegion(NoFile(), 10, 1000)
    parts = frame_response(5, [b"abc", region, b"de"], flexible_header=True)
    assert parts == [struct.pack(">iib", 4 + 1 + 3 + 1000 + 2, 5, 0) + b"abc", region, b"de"]
    assert frame_response(5, [region], flexible_header=False) == [struct.pack(">ii", 1004, 5), region]
