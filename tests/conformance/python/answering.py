"""A driver's side of the conversation: lines of JSON in, lines of JSON out; the verbs are a driver's methods.

FORMAT   `tests/conformance/suite/steps.py`.
RULES    1. A verb that a driver has no method for is unsupported, with the reason that the driver gives for it.
         2. Nothing else is written to standard output.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

WAIT_S = 30.0
MISSING = "the client has no such call"


class Unsupported(Exception):
    """The client cannot do what was asked."""


class Failure(NamedTuple):
    """What an exception of the client means: the broker's code, or a name."""

    code: int | str
    message: str


def serve(driver: Any, failure_of: Callable[[BaseException], Failure | None]) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = _answer(driver, request.pop("verb"), request, failure_of)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    driver.reset()


def _answer(
    driver: Any, verb: str, request: dict[str, Any], failure_of: Callable[[BaseException], Failure | None]
) -> dict[str, Any]:
    method = getattr(driver, verb, None)
    if method is None:
        return {"unsupported": driver.MISSING.get(verb, MISSING)}
    try:
        return {"told": method(**request) or {}}
    except Unsupported as reason:
        return {"unsupported": str(reason)}
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return {"refused": failure.code, "message": failure.message}


def decoded(text: str | None) -> bytes | None:
    """Bytes of a request."""
    return None if text is None else base64.b64decode(text)


def encoded(data: bytes | None) -> str | None:
    """Bytes of an answer."""
    return None if data is None else base64.b64encode(data).decode()


def headers_of(record: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    """A record's headers as clients take them."""
    return [(name, decoded(value)) for name, value in record["headers"]]


def needs_header_values(records: Iterable[dict[str, Any]]) -> None:
    """For clients that cannot write a header without a value."""
    if any(value is None for record in records for _, value in record["headers"]):
        raise Unsupported("a header's value must be bytes")


def told(
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> dict[str, Any]:
    """A record as a driver tells it."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": encoded(key),
        "value": encoded(value),
        "headers": [[name, encoded(one)] for name, one in headers],
    }
