"""Reads topics, lengths and counts in a request directly from the frame, without message objects.

FORMAT   A topic is a name, or from some version on an id of 16 bytes. Lengths and counts are compact (stored plus one) in
         flexible versions.
NOT HERE What follows for each partition (`fetch_codec.py`, `produce_codec.py`).
"""

from __future__ import annotations

from typing import Final

from protocol.errors import MalformedRequest
from protocol.primitives import read_uvarint

_ID_BYTES: Final = 16
_LONGEST_NAME: Final = 126


def read_name(frame: bytearray, start: int, length: int) -> tuple[str, bytes, int]:
    """Reads a topic name; returns name, empty topic id and end position. The name is "" if it is empty or too long."""
    end = start + length
    if not 0 < length <= _LONGEST_NAME:
        return "", b"", start
    return frame[start:end].decode("utf-8", "replace"), b"", end


def read_length(frame: bytearray, position: int, size: int, *, is_flexible: bool) -> tuple[int, int]:
    """Reads a length or count, which has `size` bytes in older versions; returns it and the position after it.

    Raises:
        MalformedRequest: the frame ends before.
    """
    if is_flexible:
        length, position = read_uvarint(frame, position)
        return length - 1, position
    end = position + size
    if end > len(frame):
        raise MalformedRequest("a length runs past the end")
    return int.from_bytes(frame[position:end], "big", signed=True), end


def read_topic(frame: bytearray, position: int, *, has_id: bool, is_flexible: bool) -> tuple[str, bytes, int]:
    """Reads a topic; returns its name or its id, the other one empty, and the position after it.

    Raises:
        MalformedRequest: the frame ends before, or the name is empty or too long.
    """
    if has_id:
        end = position + _ID_BYTES
        return "", bytes(frame[position:end]), end
    length, position = read_length(frame, position, 2, is_flexible=is_flexible)
    name, topic_id, end = read_name(frame, position, length)
    if not name:
        raise MalformedRequest("a topic name is empty or too long")
    return name, topic_id, end
