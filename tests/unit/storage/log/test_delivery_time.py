"""When a record of a schedule topic is due, and which ones Produce refuses (storage/log/delivery_time.py)."""

from __future__ import annotations

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.errors import ErrorCode
from storage.config.log_config import LogConfig
from storage.log.delivery_time import InvalidSchedule, due_ms
from storage.log.log_validator import BatchRules, RejectedRecords, validate

_NOW_MS = 1_700_000_000_000
_RULES = BatchRules(LogConfig(barnabas_deliver_to="target", barnabas_deliver_max_ms=1_000), "s-0")


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ((), 0),
        ((("other", b"1"),), 0),
        ((("deliver-at", b"1700000000500"),), 1_700_000_000_500),
        ((("x", None), ("deliver-after", b"250")), _NOW_MS + 250),
        ((("deliver-at", (1_700_000_000_500).to_bytes(8, "big")),), 1_700_000_000_500),
        ((("deliver-after", b"12345678"),), _NOW_MS + 12_345_678),
    ],
)
def test_a_header_is_text_or_a_long(headers: tuple[tuple[str, bytes | None], ...], due: int) -> None:
    assert due_ms(_NOW_MS, headers) == due


@pytest.mark.parametrize(
    "headers",
    [
        (("deliver-at", None),),
        (("deliver-at", b""),),
        (("deliver-at", b"-5"),),
        (("deliver-at", b"1e3"),),
        (("deliver-at", b"1" * 19),),
        (("deliver-at", b"\xff" * 8),),
        (("deliver-at", "\u0665".encode()),),
        (("deliver-at", b"1"), ("deliver-after", b"1")),
        (("deliver-at", b"1"), ("deliver-at", b"1")),
    ],
)
def test_other_headers_are_invalid(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    with pytest.raises(InvalidSchedule):
        due_ms(_NOW_MS, headers)


def test_a_delay_needs_a_timestamp() -> None:
    with pytest.raises(InvalidSchedule, match="needs a record with a timestamp"):
        due_ms(-1, (("deliver-after", b"1"),))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("count", [4, 40])
def test_produce_names_each_record_that_is_refused(codec: int, count: int) -> None:
    builder = BatchBuilder(compression=codec)
    builder.append(_NOW_MS, b"k", None)
    builder.append(_NOW_MS, None, None)
    builder.append(_NOW_MS, b"k", b"v", [("deliver-after", b"1001")])
    builder.append(_NOW_MS, b"k", b"v", [("deliver-after", b"soon")])
    for _ in range(count - 4):
        builder.append(_NOW_MS, b"k", b"v", [("deliver-after", b"1000")])
    with pytest.raises(RejectedRecords) as refusal:
        validate(builder.build(), _RULES, wall_ms=_NOW_MS)
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in refusal.value.record_errors] == [1, 2, 3]
