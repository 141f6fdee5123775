"""What a line of input says about a record; what it does not say is None or absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.client.errors import ClientError

Header = tuple[bytes, bytes | None]


class ParsedRecord(NamedTuple):
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    topic: str | None = None
    partition: int | None = None
    timestamp: int | None = None
    """Unix milliseconds; None: the time of writing."""


class MalformedInput(ClientError):
    """The input is not what the format says; the message says where."""
