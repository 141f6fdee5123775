"""The pending records of one schedule partition in the order of (due, offset), within bounded memory.

FORMAT   a bucket has the records of 1,024 ms, each as one 64-bit integer: due modulo 1,024 in the upper 11 bits, then 53
         bits of offset
RULES    1. The queue is derived from the partition and can be rebuilt from it at any time.
         2. Above `max_bytes` the buckets that are due last are dropped, and from the horizon on nothing is added. A later scan
            of the partition (`begin_scan`) adds what is due after the old horizon; until it ends, only records that are due
            before `complete_until_ms` are returned.
         3. An operation costs O(log n); dropping buckets costs O(n) and frees a quarter of the memory.
NOT HERE Reading the records (`deliverer.py`).
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from typing import Final

from storage.config.config_def import MAX_LONG

_BUCKET_BITS: Final = 10
_OFFSET_BITS: Final = 53
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_DUE_MASK: Final = (1 << _BUCKET_BITS) - 1
_ENTRY_BYTES: Final = 9
"""An array grows by an eighth."""
_BUCKET_BYTES: Final = 250
"""The array, two dictionary entries and the number in the heap."""


class DueQueue:
    """See the module."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buckets: dict[int, array[int]] = {}
        self._first_offsets: dict[int, int] = {}  # per bucket, a lower bound
        self._numbers: list[int] = []  # a heap of the buckets' numbers
        self._open: list[int] = []  # the bucket that is being emptied, as a heap
        self._open_number = -1
        self._dropped_first_offset = MAX_LONG
        self._count = 0
        self.dropped = 0
        """Pending records at or after the horizon, which are not in the queue."""
        self.horizon_ms = MAX_LONG
        self.complete_until_ms = 0  # before the first scan

    def __len__(self) -> int:
        """All pending records, dropped ones too."""
        return self._count + self.dropped

    @property
    def is_half_empty(self) -> bool:
        """Whether another scan is worth its cost."""
        return self._bytes * 2 < self._max_bytes

    @property
    def _bytes(self) -> int:
        return self._count * _ENTRY_BYTES + len(self._first_offsets) * _BUCKET_BYTES

    def add(self, due_ms: int, offset: int) -> None:
        """Adds a record."""
        if due_ms >= self.horizon_ms:
            self.dropped += 1
            self._dropped_first_offset = min(self._dropped_first_offset, offset)
            return
        number, entry = due_ms >> _BUCKET_BITS, (due_ms & _DUE_MASK) << _OFFSET_BITS | offset
        first = self._first_offsets.get(number)
        if first is None:
            heappush(self._numbers, number)
            self._buckets[number] = array("q", (entry,))
            self._first_offsets[number] = offset
        else:
            if offset < first:
                self._first_offsets[number] = offset
            if number == self._open_number:
                heappush(self._open, entry)
            else:
                self._buckets[number].append(entry)
        self._count += 1
        if self._bytes > self._max_bytes:
            self._drop_last()

    def take(self, until_ms: int, limit: int) -> list[tuple[int, int]]:
        """Removes up to `limit` records that are due by then; returns (due, offset) in order."""
        taken: list[tuple[int, int]] = []
        until_ms = min(until_ms, self.complete_until_ms - 1)
        while self._numbers and self._numbers[0] << _BUCKET_BITS <= until_ms and len(taken) < limit:
            number = self._numbers[0]
            self._open_bucket(number)
            base_ms, bucket = number << _BUCKET_BITS, self._open
            end = min(until_ms - base_ms + 1, _DUE_MASK + 1) << _OFFSET_BITS
            while bucket and bucket[0] < end and len(taken) < limit:
                entry = heappop(bucket)
                taken.append((base_ms + (entry >> _OFFSET_BITS), entry & _OFFSET_MASK))
            if bucket:
                break
            heappop(self._numbers)
            del self._first_offsets[number]
            self._open_number = -1
        self._count -= len(taken)
        return taken

    def window(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The offsets of records that are due after one time and until another; no bucket with more than `limit`."""
        found: list[int] = []
        for number in range(max(after_ms, 0) >> _BUCKET_BITS, (until_ms >> _BUCKET_BITS) + 1):
            bucket = self._open if number == self._open_number else self._buckets.get(number, ())
            if len(bucket) <= limit:
                low = max(after_ms - (number << _BUCKET_BITS) + 1, 0) << _OFFSET_BITS
                high = (until_ms - (number << _BUCKET_BITS) + 1) << _OFFSET_BITS
                found += [entry & _OFFSET_MASK for entry in bucket if low <= entry < high]
        return found

    def next_due_ms(self) -> int:
        """A lower bound of when the next record is due, exact within a bucket of 1,024 ms that `take` has reached."""
        if not self._numbers:
            return self.complete_until_ms
        number = self._numbers[0]
        base_ms = number << _BUCKET_BITS
        if number == self._open_number:
            base_ms += self._open[0] >> _OFFSET_BITS
        return min(base_ms, self.complete_until_ms)

    def first_offset(self) -> int:
        """No pending record has a lower offset; MAX_LONG without pending records."""
        return min(self._dropped_first_offset, min(self._first_offsets.values(), default=MAX_LONG))

    def begin_scan(self) -> int:
        """Before a scan adds the records at or after the horizon again; returns the horizon."""
        horizon_ms = self.complete_until_ms = self.horizon_ms
        self.horizon_ms, self.dropped, self._dropped_first_offset = MAX_LONG, 0, MAX_LONG
        return horizon_ms

    def end_scan(self) -> None:
        """The scan has added all records."""
        self.complete_until_ms = self.horizon_ms

    def _open_bucket(self, number: int) -> None:
        if number == self._open_number:
            return
        if self._open_number >= 0:
            self._buckets[self._open_number] = array("q", self._open)
        self._open = list(self._buckets.pop(number))
        heapify(self._open)
        self._open_number = number

    def _drop_last(self) -> None:
        """Drops the buckets that are due last (rule 2), but never the first one."""
        self._numbers.sort()  # a sorted list is a heap
        while self._bytes * 4 > self._max_bytes * 3 and len(self._numbers) > 1:
            number = self._numbers.pop()
            size = len(self._open) if number == self._open_number else len(self._buckets.pop(number))
            if number == self._open_number:
                self._open, self._open_number = [], -1
            self._count -= size
            self.dropped += size
            self._dropped_first_offset = min(self._dropped_first_offset, self._first_offsets.pop(number))
            self.horizon_ms = number << _BUCKET_BITS
        self.complete_until_ms = min(self.complete_until_ms, self.horizon_ms)
