"""The pending records of one schedule partition in the order of (due, offset), within bounded memory.

FORMAT   a bucket has the records of a time, each as one 64-bit integer: due modulo 2^22 ms, then 41 bits of the offset's
         distance from `base_offset`. Hours are buckets of 2^22 ms (70 minutes), seconds of 2^10 ms
RULES    1. The queue is derived from the partition and can be rebuilt from it at any time.
         2. An hour is split into seconds when it nears, and a second is sorted when it is due. Records that are added to a
            sorted second are in a heap beside it.
         3. Above `max_bytes`, `shrink` drops the buckets that are due last, and from the horizon on nothing is added. A later
            scan of the partition (`begin_scan`) adds what is due after the old horizon; until it ends, only records that are
            due before `complete_until_ms` are returned. A scan is in vain if the first bucket after the horizon is too large.
         4. `prepare` and `shrink` do the work that grows with a bucket in steps of about a millisecond. Nothing is added or
            taken between the steps.
NOT HERE Reading the records (`record_loader.py`), when they are delivered (`deliverer.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from storage.config.config_def import MAX_LONG

_HOUR_BITS: Final = 22
_SECOND_BITS: Final = 10
_OFFSET_BITS: Final = 41
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_ENTRY_BYTES: Final = 9
"""An array grows by an eighth."""
_BUCKET_BYTES: Final = 300
"""The objects, a dictionary entry and the number in the heap."""
_STEP: Final = 4_096
"""Entries of a step."""


class DueQueue:
    """The pending records as (due time, offset); the records themselves stay in the log."""

    def __init__(self, max_bytes: int, base_offset: int = 0) -> None:
        """No record that is added has an offset below `base_offset`."""
        self._max_bytes = max_bytes
        self._base_offset = base_offset
        self._hours = _Buckets(_HOUR_BITS)
        self._seconds = _Buckets(_SECOND_BITS)
        self._first_far_ms = 0  # what is due before is in the seconds
        self._dropped_first_offset = MAX_LONG
        self._count = 0
        self.dropped = 0
        """Pending records at or after the horizon, which are not in the queue."""
        self.horizon_ms = MAX_LONG
        self.complete_until_ms = 0  # before the first scan
        self._kept_bytes = max_bytes  # when buckets were dropped
        self._scanned_horizon_ms = -1  # before the last scan

    def __len__(self) -> int:
        """The number of pending records, with those that were dropped."""
        return self._count + self.dropped

    @property
    def is_half_empty(self) -> bool:
        """Whether less than half of the memory is used, and of what was kept, so that another scan is worth its cost."""
        return self._bytes * 2 < min(self._max_bytes, self._kept_bytes)

    @property
    def was_scan_in_vain(self) -> bool:
        """Whether the last scan could not add what is due after the horizon (rule 3)."""
        return self.horizon_ms == self._scanned_horizon_ms

    @property
    def _bytes(self) -> int:
        return self._count * _ENTRY_BYTES + (len(self._hours.of) + len(self._seconds.of)) * _BUCKET_BYTES

    def add(self, due_ms: int, offset: int) -> None:
        """Adds a record."""
        if due_ms >= self.horizon_ms:
            self.dropped += 1
            self._dropped_first_offset = min(self._dropped_first_offset, offset)
            return
        near = self._seconds if due_ms < self._first_far_ms else self._hours
        near.add(due_ms, (due_ms & (1 << _HOUR_BITS) - 1) << _OFFSET_BITS | offset - self._base_offset)
        self._count += 1

    def prepare(self, until_ms: int) -> Iterator[None]:
        """Splits the hours that begin until then, and sorts the first second, in steps."""
        while self._hours.first_ms <= until_ms:
            yield from self._split_first_hour()
        seconds = self._seconds
        if seconds.first_ms <= until_ms:
            yield from seconds.of[seconds.numbers[0]].sort()

    def _split_first_hour(self) -> Iterator[None]:
        hours, seconds = self._hours, self._seconds
        number, begin_ms = hours.numbers[0], hours.first_ms
        entries = hours.of[number].entries
        for at in range(0, len(entries), _STEP):
            for entry in entries[at : at + _STEP]:
                seconds.add(begin_ms + (entry >> _OFFSET_BITS), entry)
            yield
        hours.remove_first()
        self._first_far_ms = number + 1 << _HOUR_BITS

    def take(self, until_ms: int, limit: int, ready: Container[int] | None = None) -> list[tuple[int, int]]:
        """Removes up to `limit` records that are due by then; returns (due, offset) in order.

        It ends before the first offset that is not in `ready`, if that is given.
        """
        taken: list[tuple[int, int]] = []
        seconds, until_ms = self._seconds, min(until_ms, self.complete_until_ms - 1)
        for _ in self.prepare(until_ms):
            pass  # no steps if the caller has called `prepare`
        while seconds.numbers and seconds.first_ms <= until_ms and len(taken) < limit:
            bucket, base_ms = seconds.of[seconds.numbers[0]], seconds.numbers[0] << _SECOND_BITS
            if not bucket.is_sorted:
                if len(bucket.entries) > _STEP and taken:
                    break
                for _ in bucket.sort():
                    pass
            hour_ms = base_ms >> _HOUR_BITS << _HOUR_BITS
            for entry in bucket.ascending(until_ms - hour_ms + 1 << _OFFSET_BITS, limit - len(taken)):
                offset = (entry & _OFFSET_MASK) + self._base_offset
                if ready is not None and offset not in ready:
                    break
                taken.append((hour_ms + (entry >> _OFFSET_BITS), offset))
                bucket.remove(entry)
            if len(bucket):
                break
            seconds.remove_first()
        self._count -= len(taken)
        return taken

    def upcoming(self, until_ms: int, limit: int) -> list[int]:
        """The offsets of about `limit` records that are due by then, without those of a large second that is not sorted yet."""
        found: list[int] = []
        for number in sorted(number for number in self._seconds.numbers if number << _SECOND_BITS <= until_ms):
            bucket = self._seconds.of[number]
            if len(found) >= limit or (len(bucket) > limit and not bucket.is_sorted):
                break
            end = until_ms - (number << _SECOND_BITS >> _HOUR_BITS << _HOUR_BITS) + 1 << _OFFSET_BITS
            found += [
                (entry & _OFFSET_MASK) + self._base_offset
                for entry in (bucket.ascending(end, limit) if bucket.is_sorted else bucket.entries)
                if entry < end
            ]
        return found

    def next_due_ms(self) -> int:
        """A lower bound of when the next record is due, exact when `prepare` has sorted its second."""
        first_ms = self._hours.first_ms
        if self._seconds.numbers:
            bucket = self._seconds.of[self._seconds.numbers[0]]
            first_ms = self._seconds.first_ms
            if bucket.is_sorted:
                first_ms = (first_ms >> _HOUR_BITS << _HOUR_BITS) + (bucket.first() >> _OFFSET_BITS)
        return min(first_ms, self.complete_until_ms)

    def first_offset(self) -> int:
        """No pending record has a lower offset; MAX_LONG without pending records."""
        first = min(self._hours.first_entry_offset(), self._seconds.first_entry_offset())
        return min(self._dropped_first_offset, MAX_LONG if first == MAX_LONG else first + self._base_offset)

    def begin_scan(self) -> int:
        """Before a scan adds the records at or after the horizon again; returns the horizon."""
        horizon_ms = self.complete_until_ms = self._scanned_horizon_ms = self.horizon_ms
        self.horizon_ms, self.dropped, self._dropped_first_offset = MAX_LONG, 0, MAX_LONG
        return horizon_ms

    def end_scan(self) -> None:
        """The scan has added all records."""
        self.complete_until_ms = self.horizon_ms

    def shrink(self) -> Iterator[None]:
        """Drops what is due last above the limit, in steps; call it after some hundred records were added (rule 3)."""
        if self._bytes <= self._max_bytes:
            return
        if not self._seconds.numbers:
            yield from self._split_first_hour()
        for buckets, keep in (self._hours, 0), (self._seconds, 1):
            buckets.numbers.sort()  # a sorted list is a heap
            while self._bytes * 4 > self._max_bytes * 3 and len(buckets.numbers) > keep:
                number = buckets.numbers.pop()
                bucket = buckets.of.pop(number)
                self._count -= len(bucket)
                self.dropped += len(bucket)
                first_offset = bucket.first_offset + self._base_offset
                self._dropped_first_offset = min(self._dropped_first_offset, first_offset)
                self.horizon_ms = number << buckets.bits
        self.complete_until_ms = min(self.complete_until_ms, self.horizon_ms)
        self._kept_bytes = self._bytes


class _Buckets:
    """The buckets of one size."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.of: dict[int, _Bucket] = {}
        self.numbers: list[int] = []  # a heap

    @property
    def first_ms(self) -> int:
        """When the first bucket begins; MAX_LONG without one."""
        return self.numbers[0] << self.bits if self.numbers else MAX_LONG

    def add(self, due_ms: int, entry: int) -> None:
        number = due_ms >> self.bits
        bucket = self.of.get(number)
        if bucket is None:
            heappush(self.numbers, number)
            bucket = self.of[number] = _Bucket()
        bucket.add(entry)

    def remove_first(self) -> None:
        del self.of[heappop(self.numbers)]

    def first_entry_offset(self) -> int:
        """A lower bound of the distances of all offsets."""
        return min((bucket.first_offset for bucket in self.of.values()), default=MAX_LONG)


class _Bucket:
    """The entries of a bucket: unsorted, or from `sort` on sorted from `_position` on, with later ones in a heap."""

    __slots__ = ("_later", "_position", "entries", "first_offset")

    def __init__(self) -> None:
        self.entries = array("q")
        self.first_offset = MAX_LONG
        """A lower bound of the offsets' distances."""
        self._position = -1
        self._later: list[int] = []

    def __len__(self) -> int:
        return len(self.entries) - max(self._position, 0) + len(self._later)

    @property
    def is_sorted(self) -> bool:
        return self._position >= 0

    def add(self, entry: int) -> None:
        offset = entry & _OFFSET_MASK
        self.first_offset = min(self.first_offset, offset)
        if self._position < 0 or not self.entries or entry > self.entries[-1]:
            self.entries.append(entry)
        else:
            heappush(self._later, entry)

    def sort(self) -> Iterator[None]:
        """Sorts in steps: large buckets by millisecond first, whose records were mostly added in the order of the offsets."""
        if self.is_sorted:
            return
        entries, parts = self.entries, dict[int, "array[int]"]()
        if len(entries) <= _STEP:
            self.entries = array("q", sorted(entries))
        else:
            for at in range(0, len(entries), _STEP):
                for entry in entries[at : at + _STEP]:
                    due = entry >> _OFFSET_BITS
                    if due in parts:
                        parts[due].append(entry)
                    else:
                        parts[due] = array("q", (entry,))
                yield
            done = array("q")
            for due in sorted(parts):
                yield from _append_sorted(done, parts.pop(due))
            self.entries = done
        self._position = 0

    def first(self) -> int:
        """The first entry of a sorted bucket that is not empty."""
        return next(self.ascending(1 << 63, 1))

    def ascending(self, end: int, limit: int) -> Iterator[int]:
        """Up to `limit` entries below `end` of a sorted bucket; `remove` may remove each of them."""
        position = self._position
        stop = bisect_left(self.entries, end, position, min(len(self.entries), position + limit))
        if not self._later:
            return iter(self.entries[position:stop])
        return islice(self._merged(self.entries[position:stop], end), limit)

    def _merged(self, entries: array[int], end: int) -> Iterator[int]:
        later = sorted(entry for entry in self._later if entry < end)
        at = 0
        for entry in entries:
            while at < len(later) and later[at] < entry:
                yield later[at]
                at += 1
            yield entry
        yield from later[at:]

    def remove(self, entry: int) -> None:
        """Removes the first entry."""
        if self._later and self._later[0] == entry:
            heappop(self._later)
            return
        self._position += 1
        if self._position >= _STEP and self._position * 2 > len(self.entries):
            del self.entries[: self._position]
            self._position = 0


def _append_sorted(done: array[int], entries: array[int]) -> Iterator[None]:
    """Appends the entries of one millisecond in steps: ascending parts, as those of a scan are, otherwise all at once."""
    begin = len(done)
    for at in range(0, len(entries), _STEP):
        part = sorted(entries[at : at + _STEP])
        if at and part[0] < done[-1]:
            done[begin:] = array("q", sorted(entries))
            return
        done.extend(array("q", part))
        yield
