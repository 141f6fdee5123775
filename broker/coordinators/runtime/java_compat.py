"""Java's string hashes and string lengths, where a client or another broker can see the result.

RULES    1. The partition of a key is Kafka's: brokers of both kinds find a group in the same partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def java_hash(text: str) -> int:
    """Java's String.hashCode, as signed 32 bits."""
    value = 0
    for unit in text.encode("ascii") if text.isascii() else utf16_units(text):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def abs_hash(key: str) -> int:
    """Kafka's Utils.abs of the hash; 0 for the lowest value. Modulo the partition count it gives the partition of a key."""
    value = java_hash(key)
    return 0 if value == -0x80000000 else abs(value)


def utf16_units(text: str) -> list[int]:
    """The UTF-16 units of a string: Java's characters."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(encoded[::2], encoded[1::2], strict=True)]


def hash_map_order(names: Iterable[str]) -> list[str]:
    """Names in the iteration order of a Java HashMap with 16 buckets."""

    def bucket(name: str) -> int:
        value = java_hash(name) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & 15

    return sorted(names, key=bucket)
