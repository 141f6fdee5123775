"""Maps each key to the offset of its last record in a fixed amount of memory (Kafka: SkimpyOffsetMap).

FORMAT   one slot: a 16-byte hash and an 8-byte offset, as in Apache Kafka, so the setting has the same meaning.
         A hash of zeros is a free slot.
RULES    1. A key is represented by its 128-bit hash: collisions are negligible, and the memory is independent of the key
            lengths.
         2. The table is allocated once, limited by the memory and by twice the expected keys; it never grows.
         3. Double hashing: a table that is 90 % full is searched in about a dozen probes.
         4. Entries are never removed.
NOT HERE Building the map (cleaner.py).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 16
SLOT_BYTES: Final = HASH_BYTES + 8
NOT_FOUND: Final = -1

_SMALLEST: Final = 5
_FREE = bytes(HASH_BYTES)
_ALMOST_FREE = bytes(HASH_BYTES - 1) + b"\x01"


class OffsetMap:
    """An open-addressing hash table in byte arrays."""

    __slots__ = ("_hashes", "_offsets", "capacity", "latest_offset", "size", "slots")

    def __init__(self, memory_bytes: int, load_factor: float, expected: int) -> None:
        """Allocate slots for `expected` keys, or for those that `memory_bytes` can hold at `load_factor`."""
        self.slots = _prime_at_or_below(max(_SMALLEST, min(memory_bytes // SLOT_BYTES, 2 * expected)))
        self.capacity = min(max(1, int(self.slots * load_factor)), self.slots - 1)
        """The maximum number of keys. One slot stays free, where every search ends."""
        self._hashes = bytearray(self.slots * HASH_BYTES)
        self._offsets = memoryview(bytearray(self.slots * 8)).cast("q")
        self.size = 0
        self.latest_offset = NOT_FOUND
        """All keys up to this offset are in the map."""

    @property
    def is_full(self) -> bool:
        """Whether no further key fits."""
        return self.size >= self.capacity

    @property
    def utilization(self) -> float:
        """The share of used slots."""
        return self.size / self.slots

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of a key's last record."""
        digest, slot, is_known = self._find(key)
        if not is_known:
            self._hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES] = digest
            self.size += 1
        self._offsets[slot] = offset
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The offset of a key's last record; NOT_FOUND if there is none."""
        _, slot, is_known = self._find(key)
        return self._offsets[slot] if is_known else NOT_FOUND

    def _find(self, key: bytes) -> tuple[bytes, int, bool]:
        """The key's hash, its slot or a free one, and whether the key is in the table."""
        digest = blake2b(key, digest_size=HASH_BYTES).digest()
        if digest == _FREE:
            digest = _ALMOST_FREE
        hashes, slots = self._hashes, self.slots
        slot = int.from_bytes(digest[:8], "little") % slots
        stride = 0
        while True:
            at = slot * HASH_BYTES
            found = hashes[at : at + HASH_BYTES]
            if found == digest:
                return digest, slot, True
            if found == _FREE:
                return digest, slot, False
            if not stride:
                stride = 1 + int.from_bytes(digest[8:], "little") % (slots - 1)
            slot = (slot + stride) % slots


def _prime_at_or_below(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
