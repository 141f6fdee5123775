"""When the verbs say that a record of a schedule topic is due (barnabas/admin/schedules.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.admin import schedules
from storage.log import delivery_time

_NOW_MS = 1_700_000_000_000
_LONG = (1_700_000_000_500).to_bytes(8, "big")
_AT, _AFTER = "deliver-at", "deliver-after"


@pytest.mark.parametrize("timestamp_ms", [_NOW_MS, -5, -1])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("other", b"1")],
        [(_AT, b"1700000000500")],
        [(_AT, _LONG)],
        [("x", None), (_AFTER, b"250")],
        [(_AFTER, b"12345678")],
        [(_AT, b"9" * 18)],
        [(_AT, b"9" * 19)],
        [(_AT, b"\xff" * 8)],
        [(_AT, b"soon")],
        [(_AT, None)],
        [(_AT, b"")],
        [(_AT, b"5"), (_AFTER, b"600000")],
        [(_AFTER, b"600000"), (_AFTER, b"600000")],
    ],
)
def test_the_verbs_and_the_daemon_agree(timestamp_ms: int, headers: list[tuple[str, bytes | None]]) -> None:
    """Records with invalid headers were appended before the topic became a schedule topic."""
    try:
        due_ms = delivery_time.due_ms(timestamp_ms, tuple(headers))
    except delivery_time.InvalidSchedule:
        due_ms = delivery_time.AT_ONCE
    encoded = [(name.encode(), value) for name, value in headers]
    record: Any = SimpleNamespace(timestamp=timestamp_ms, headers=encoded)
    assert schedules.due_ms(record) == due_ms
