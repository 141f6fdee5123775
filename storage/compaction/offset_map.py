"""For each key the offset of its last record, in a fixed amount of memory.

FORMAT   one slot: 16 bytes of hash and an 8 byte offset, as in Apache Kafka, so one setting means the same in both.
         A hash of zeros is a free slot.
RULES    1. A key is known by a hash of 128 bits: that two keys of one partition share it is not going to happen, and
            the memory does not depend on how long keys are.
         2. The table is made once, no larger than it may be and no larger than twice what can come; it never grows.
         3. Slots are tried at a stride of the key's own (double hashing): a table that is nine tenths full is searched
            in a dozen tries.
         4. Entries are never removed.
NOT HERE What is put in (cleaner.py).
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
    """A hash table without objects."""

    __slots__ = ("_hashes", "_offsets", "latest_offset", "size", "slots", "wanted")

    def __init__(self, memory_bytes: int, load_factor: float, expected: int) -> None:
        """Make room for `expected` keys, or for as many as `memory_bytes` hold up to `load_factor`."""
        self.slots = _prime_at_or_below(max(_SMALLEST, min(memory_bytes // SLOT_BYTES, 2 * expected)))
        self.wanted = min(max(1, int(self.slots * load_factor)), self.slots - 1)
        """So many keys may be in it; then it is full. One slot stays free, where every search ends."""
        self._hashes = bytearray(self.slots * HASH_BYTES)
        self._offsets = memoryview(bytearray(self.slots * 8)).cast("q")
        self.size = 0
        self.latest_offset = NOT_FOUND
        """Up to here everything is known."""

    @property
    def is_full(self) -> bool:
        """Whether no further key may come."""
        return self.size >= self.wanted

    @property
    def utilization(self) -> float:
        """Share of the slots that are in use."""
        return self.size / self.slots

    def put(self, key: bytes, offset: int) -> None:
        """The key's record at `offset` is the last one so far."""
        digest, slot, is_known = self._find(key)
        if not is_known:
            self._hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES] = digest
            self.size += 1
        self._offsets[slot] = offset
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """Offset of the last record of a key; NOT_FOUND where there is none."""
        _, slot, is_known = self._find(key)
        return self._offsets[slot] if is_known else NOT_FOUND

    def _find(self, key: bytes) -> tuple[bytes, int, bool]:
        """The key's hash, its slot or a free one for it, and which of both."""
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
