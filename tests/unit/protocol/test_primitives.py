"""protocol/primitives.py: varints and uuids."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.primitives import (
    ZERO_UUID,
    read_uvarint,
    read_varint,
    read_varlong,
    uuid_from_text,
    uuid_text,
    uvarint,
    varint,
)

Read = Callable[[bytes, int], tuple[int, int]]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2**31 - 1, b"\xff\xff\xff\xff\x07"),
    ],
)
def test_an_unsigned_varint_has_seven_bits_a_byte(value: int, encoded: bytes) -> None:
    """FORMAT: lowest bits first, the top bit says that more follow."""
    assert uvarint(value) == encoded
    assert read_uvarint(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\x00"), (-1, b"\x01"), (1, b"\x02"), (-64, b"\x7f"), (64, b"\x80\x01")]
)
def test_a_varint_is_zigzag(value: int, encoded: bytes) -> None:
    """FORMAT: small negative numbers are short too."""
    assert varint(value) == encoded
    assert read_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_varlong_comes_back(value: int) -> None:
    """RULE 1, over the whole range of 64 bits."""
    encoded = varint(value)
    assert read_varlong(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (read_uvarint, b""),
        (read_uvarint, b"\x80"),
        (read_uvarint, b"\x80\x80\x80\x80\x80\x00"),
        (read_uvarint, b"\xff\xff\xff\xff\x1f"),
        (read_varint, b"\xff\xff\xff\xff\xff\x01"),
        (read_varlong, b"\xff" * 10 + b"\x00"),
        (read_varlong, b"\xff" * 9 + b"\x02"),
    ],
)
def test_a_varint_too_long_or_cut_short_is_malformed(read: Read, encoded: bytes) -> None:
    """RULE 2."""
    with pytest.raises(MalformedRequest):
        read(encoded, 0)


def test_a_uuid_is_printed_as_kafka_prints_it() -> None:
    """FORMAT: base64 of the url alphabet, no padding; the values are Kafka's own for its metadata topic and zero."""
    assert uuid_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_text(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"


@given(st.binary(min_size=16, max_size=16))
def test_any_uuid_comes_back_from_its_text(uuid: bytes) -> None:
    """uuid_from_text is the inverse of uuid_text."""
    assert uuid_from_text(uuid_text(uuid)) == uuid


@pytest.mark.parametrize("text", ["", "short", "A" * 21, "A" * 23, "A" * 1000, "AAAAAAAAAAAAAAAAAAAAA!", "é" * 22])
def test_a_text_that_is_no_uuid_is_refused_with_a_sentence(text: str) -> None:
    """Such text comes from files that people edit."""
    with pytest.raises(ValueError, match="uuid"):
        uuid_from_text(text)


def test_error_codes_are_kafkas() -> None:
    """protocol/errors.py rule 1, at a few numbers that clients know by heart."""
    assert [ErrorCode(code).name for code in (-1, 0, 3, 36, 100, 136)] == [
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "TOPIC_ALREADY_EXISTS",
        "UNKNOWN_TOPIC_ID",
        "CONTROLLER_ID_NOT_REGISTERED",
    ]
    assert sorted(ErrorCode) == list(range(-1, 137))


def test_a_kafka_error_tells_its_code_and_message() -> None:
    """What a log line shows."""
    assert str(KafkaError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    assert str(KafkaError(ErrorCode.INVALID_REQUEST, "no topics")) == "INVALID_REQUEST: no topics"
