"""Reads DER, the encoding of certificates and keys (X.690).

NOT HERE What the values mean (`certificates.py`, `ssl_principal.py`, `jks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Element(NamedTuple):
    """One value."""

    tag: int
    content: bytes
    encoded: bytes
    """Tag, length and content."""


def elements(data: bytes) -> Iterator[Element]:
    """The values of a text that has nothing else, such as the content of a SEQUENCE.

    Raises:
        ValueError: a length exceeds the data.
        IndexError: the data end within a tag or a length.
    """
    position = 0
    while position < len(data):
        tag, length, start = data[position], data[position + 1], position + 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[start : start + size], "big")
            start += size
        end = start + length
        if end > len(data):
            raise ValueError("a length exceeds the certificate")
        yield Element(tag, data[start:end], data[position:end])
        position = end


def object_identifier(content: bytes) -> str:
    """The numbers of an OBJECT IDENTIFIER, such as 2.5.4.3."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
