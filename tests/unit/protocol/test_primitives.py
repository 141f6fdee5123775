"""Varints, uuids and error codes (protocol/primitives.py, protocol/errors.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.cli.records import json_lines
from protocol.errors import ErrorCode, KafkaError, MalformedRequest
from protocol.primitives import (
    ZERO_UUID,
    json_value,
    new_uuid,
    read_uvarint,
    uuid_from_text,
    uuid_text,
    uvarint,
    varint,
)
from protocol.record_codec import read_varint, read_varlong


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
def test_an_unsigned_varint_has_seven_bits_per_byte(value: int, encoded: bytes) -> None:
    assert uvarint(value) == encoded
    assert read_uvarint(b"?" + encoded + b"?", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\x00"), (-1, b"\x01"), (1, b"\x02"), (-64, b"\x7f"), (64, b"\x80\x01")]
)
def test_a_varint_is_zigzag(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded
    assert read_varint(encoded, 0) == (value, len(encoded))


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_varlong_survives_a_round_trip(value: int) -> None:
    encoded = varint(value)
    assert read_varlong(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize(
    "encoded", [b"", b"\x80", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01"]
)
def test_an_invalid_varint_is_malformed(encoded: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_uvarint(encoded, 0)


def test_a_uuid_is_formatted_as_in_kafka() -> None:
    """The values are Kafka's for its metadata topic and for zero."""
    assert uuid_text(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert uuid_text(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_text(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"


@given(st.binary(min_size=16, max_size=16))
def test_any_uuid_survives_a_round_trip_as_text(uuid: bytes) -> None:
    assert uuid_from_text(uuid_text(uuid)) == uuid


@pytest.mark.parametrize("text", ["", "short", "A" * 21, "A" * 23, "A" * 1000, "AAAAAAAAAAAAAAAAAAAAA!", "é" * 22])
def test_an_invalid_uuid_text_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="uuid"):
        uuid_from_text(text)


@pytest.mark.parametrize(
    ("data", "expected"), [(None, None), (b"", ""), ("é".encode(), "é"), (b"\xff\xfe", {"base64": "//4="})]
)
def test_bytes_in_json_are_text_or_base64_in_the_broker_and_its_clients(data: bytes | None, expected: object) -> None:
    assert json_value(data) == json_lines.json_value(data) == expected


def test_error_codes_equal_kafkas() -> None:
    assert [ErrorCode(code).name for code in (-1, 0, 3, 36, 100, 136)] == [
        "UNKNOWN_SERVER_ERROR",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "TOPIC_ALREADY_EXISTS",
        "UNKNOWN_TOPIC_ID",
        "CONTROLLER_ID_NOT_REGISTERED",
    ]
    assert sorted(ErrorCode) == list(range(-1, 137))


def test_the_text_of_a_kafka_error_has_code_and_message() -> None:
    assert str(KafkaError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    assert str(KafkaError(ErrorCode.INVALID_REQUEST, "no topics")) == "INVALID_REQUEST: no topics"


def test_new_ids_are_not_reserved_and_do_not_start_with_a_dash() -> None:
    assert uuid_text(new_uuid(bytes)) == "AAAAAAAAQACAAAAAAAAAAA"
    draws = iter([b"\xf8" + b"\0" * 15, b"\x01" * 16])
    assert uuid_text(new_uuid(lambda _: next(draws))) == "AQEBAQEBQQGBAQEBAQEBAQ"
