"""What a line of input says about a record; what it does not say is None or absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from barnabas.client.errors import ClientError
from barnabas.client.record_batches import Header


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


_MAX_PARTITION = (1 << 31) - 1
TIMESTAMP_LIMIT = 1 << 63


def check_place(topic: Any, partition: Any, timestamp: Any) -> None:
    """Raises MalformedInput if one of them, None excepted, can be in no record."""
    if topic is not None and type(topic) is not str:
        raise MalformedInput(f"the topic is {topic!r}, which is no text")
    if partition is not None and (type(partition) is not int or not 0 <= partition <= _MAX_PARTITION):
        raise MalformedInput(f"the partition is {partition!r}, which is no partition")
    if timestamp is not None and (type(timestamp) is not int or not -TIMESTAMP_LIMIT <= timestamp < TIMESTAMP_LIMIT):
        raise MalformedInput(f"the timestamp is {timestamp!r}, which is no timestamp")
