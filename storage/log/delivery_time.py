"""When a record of a schedule topic is due: its headers `deliver-at` and `deliver-after`.

FORMAT   deliver-at     milliseconds since 1970
         deliver-after  milliseconds from the record's timestamp
         Both are unsigned decimal text (1 to 18 ASCII digits), or a big-endian 64-bit integer that is not negative, as Java's
         LongSerializer writes it: its first byte is 0 for every time before the year 2,285,000, so it is no text.
RULES    1. A record has at most one of these headers, once. Without one it is due at once: at 0.
         2. A record without value cancels the pending records with its key. It needs a key, and is never delivered.
         3. Produce refuses records that break a rule, and those due after the topic's limit. A deliverer treats such a record,
            which was appended before the topic became a schedule topic, as due at once.
NOT HERE Delivery (`broker/coordinators/delivery/`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.primitives import Buffer
from protocol.record_codec import Headers, read_record
from protocol.records import NO_TIMESTAMP, BatchHeader

DELIVER_AT: Final = "deliver-at"
DELIVER_AFTER: Final = "deliver-after"
AT_ONCE: Final = 0
_NAMES: Final = frozenset({DELIVER_AT, DELIVER_AFTER})
_MAX_DIGITS: Final = 18
_LONG_BYTES: Final = 8


class InvalidSchedule(ValueError):
    """A record breaks a rule; the message is for its producer."""


def due_ms(timestamp_ms: int, headers: Headers) -> int:
    """When a record is due, in milliseconds since 1970.

    Raises:
        InvalidSchedule: its headers break rule 1 or the format.
    """
    if not headers:
        return AT_ONCE
    found = [(name, value) for name, value in headers if name in _NAMES]
    if not found:
        return AT_ONCE
    if len(found) > 1:
        raise InvalidSchedule(f"A record has one header {DELIVER_AT} or {DELIVER_AFTER}, not {len(found)}")
    ((name, value),) = found
    milliseconds = _number(name, value)
    if name == DELIVER_AT:
        return milliseconds
    if timestamp_ms == NO_TIMESTAMP:
        raise InvalidSchedule(f"The header {DELIVER_AFTER} needs a record with a timestamp")
    return max(AT_ONCE, timestamp_ms + milliseconds)


def _number(name: str, value: bytes | None) -> int:
    if value is not None:
        if 0 < len(value) <= _MAX_DIGITS and value.isdigit():
            return int(value)
        if len(value) == _LONG_BYTES and not value[0]:
            return int.from_bytes(value, "big")
    raise InvalidSchedule(f"The header {name} is neither decimal milliseconds nor a 64-bit integer: {value!r}")


def schedule_errors(header: BatchHeader, body: Buffer, append_ms: int | None, latest_ms: int) -> list[tuple[int, str]]:
    """(index in the batch, reason) of the records that a schedule topic refuses; all records are checked already.

    `append_ms` replaces the records' timestamps if it is set; none may be due after `latest_ms`.
    """
    errors: list[tuple[int, str]] = []
    for index, (timestamp_ms, key, value, headers) in enumerate(_records(header, bytes(body))):
        try:
            due = due_ms(timestamp_ms if append_ms is None else append_ms, headers)
        except InvalidSchedule as error:
            errors.append((index, str(error)))
            continue
        if due > latest_ms:
            errors.append(
                (index, f"The record is due at {due}, later than barnabas.deliver.max.ms allows: {latest_ms}")
            )
        elif key is None and value is None:
            errors.append((index, "A record without value cancels those with its key, and this one has no key"))
    return errors


def _records(header: BatchHeader, body: bytes) -> Iterable[tuple[int, bytes | None, bytes | None, Headers]]:
    at = 0
    for _ in range(header.record_count):
        delta_ms, _, key, value, headers, at = read_record(body, at)
        yield header.base_timestamp + delta_ms, key, value, headers
