"""What a coordinator must do as Java does it, because the result is seen from outside.

RULES    1. A key's partition is Kafka's, or a broker of the other kind would not find the group again.
NOT HERE Everything that Python may do its own way.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def java_hash(text: str) -> int:
    """Java's String.hashCode, as the signed 32 bits that it is."""
    value = 0
    for unit in text.encode("ascii") if text.isascii() else utf16_units(text):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def abs_hash(key: str) -> int:
    """The absolute value of the hash, 0 for the one that has none: what a coordinator's partition is taken from."""
    value = java_hash(key)
    return 0 if value == -0x80000000 else abs(value)


def utf16_units(text: str) -> list[int]:
    """What Java counts as the characters of a string."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(encoded[::2], encoded[1::2], strict=True)]


def in_java_order(names: Iterable[str]) -> list[str]:
    """Names in the order in which a Java HashMap of a few entries walks them."""

    def bucket(name: str) -> int:
        value = java_hash(name) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & 15

    return sorted(names, key=bucket)
