"""Sends a response, a sequence of parts, across partial writes.

RULES    1. Parts are sent in order: header bytes, file region, header bytes, file region, …
         2. One call sends at most `MAX_BYTES_PER_CALL` of records, so that one fast reader does not starve the other
            connections; of a long region `MAX_BYTES_ALONE` if no other connection has been active for `ALONE_MS`
            (docs/decisions/0124-long-turns-of-a-lone-reader.md). Headers do not count: the last bytes of a region would
            need a call of their own.
         3. Regions and ranges of scattered regions of at most `COPIED_RANGE_BYTES` in the page cache are read and sent together
            with the parts around them, `COPIED_BYTES_PER_CALL` per call (docs/decisions/0060-small-regions-are-copied.md).
            All connections read to the same memory; what the socket does not take of one such call is kept. Larger ones are
            sent with sendfile and never read into memory: of unsent parts only references to their files are.
         4. A region is sent only as far as it is in the page cache; `uncached` is the first part that is not
            (page_cache_prefetch.py).
         5. While `is_holding`, small responses wait for the next one and are sent with it in one call.
         6. After a short write the rest is tried at once: on a fast connection the receiver has made room meanwhile. After
            `_MAX_VAIN_TRIES` consecutive tries that sent nothing, it is tried only after one in `_SHORT_WRITES_PER_TRY`.
         7. Only a small region is joined with the bytes before it into one packet. Before a large one they are sent at once:
            the receiver wakes up while the region is sent. With TLS they are always joined: each send costs a record.
NOT HERE When to send (`connection.py` watches the socket).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from broker.network.page_cache_prefetch import COPIED_BYTES_PER_CALL, COPIED_RANGE_BYTES, ReadAhead, Uncached
from broker.network.socket_io import PlaintextTransportLayer
from protocol.file_region import FileRegion, ScatteredRegion
from protocol.framing import Part
from protocol.primitives import Buffer

MAX_BYTES_PER_CALL = 2 * 1024 * 1024
MAX_BYTES_ALONE = 8 * 1024 * 1024
ALONE_MS = 100
JOINED_BYTES = 32 * 1024
_HEADER_BYTES = 4096
"""A call that sends no more than this sends headers only, or hardly anything else (rule 2)."""
_BUFFERS_PER_CALL = 256
_PARTS_TO_NEXT_REGION = 3
"""Between two regions of a response is a header."""
_HELD_RESPONSES = 64
_HELD_RESPONSE_BYTES = 4096
_MAX_VAIN_TRIES = 8
_SHORT_WRITES_PER_TRY = 32
_KNOWN_S = 0.01
"""An answer of the page cache is used this long: pages in use are seldom evicted within it."""


class RegionEnded(Exception):
    """A log file is shorter than the region to send: the promised bytes do not exist, so the connection must be closed."""


class Sender:
    """The unsent parts of one connection."""

    __slots__ = (
        "_clock", "_is_loop_shared", "_known_before_s", "_known_until", "_parts", "_read_ahead", "_short_writes", "_skip",
        "_transport", "_vain_tries", "is_holding", "uncached",
    )  # fmt: skip

    def __init__(
        self,
        transport: PlaintextTransportLayer,
        read_ahead: ReadAhead | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_loop_shared: Callable[[int], bool] | None = None,
    ) -> None:
        """Without `read_ahead`, sending blocks on the disk. `clock` returns seconds.

        `is_loop_shared`: whether several connections have been active since a time in milliseconds; None: always.
        """
        self._transport = transport
        self._clock = clock
        self._read_ahead = read_ahead
        self._is_loop_shared = None if transport.joins_regions else is_loop_shared  # encrypting 8 MiB takes too long
        self.uncached: Uncached | None = None
        """What to read from disk before more is sent."""
        self._parts: deque[Part] = deque()
        self._skip = 0  # bytes of the first part that are sent, if it is a region
        self._known_until = 0  # the first part is in the page cache up to this offset, as of the last query
        self._known_before_s = 0.0
        self._vain_tries = 0  # consecutive ones (rule 6)
        self._short_writes = 0  # since the last try, after _MAX_VAIN_TRIES
        self.is_holding = False

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has everything."""
        return not self._parts

    def send(self, parts: list[Part]) -> bool:
        """Sends as much as the socket takes; returns whether all of it is sent or held."""
        if len(parts) == 1 and isinstance(part := parts[0], bytes):  # a response without records
            if self.is_holding and len(part) <= _HELD_RESPONSE_BYTES and len(self._parts) < _HELD_RESPONSES:
                self._parts.append(part)
                return True
            if not self._parts:
                sent = self._transport.send(part, more=False) or 0
                if sent == len(part):
                    return True
                self._parts.append(memoryview(part)[sent:])
                return False
        self._parts.extend(parts)
        return self.resume()

    def resume(self) -> bool:
        """Sends more of the unsent parts; returns whether nothing is left.

        Raises:
            OSError: the connection is broken.
            RegionEnded: a file is shorter than its region.
        """
        if self.uncached is not None:
            return False
        budget = MAX_BYTES_PER_CALL
        while self._parts and budget > 0:
            buffers = self._take_buffers()
            sent = self._send_buffers(buffers) if buffers else self._send_region(budget)
            if sent is None:
                return False
            if not buffers or sent > _HEADER_BYTES:
                budget -= sent
        return not self._parts

    def _take_buffers(self) -> list[Buffer]:
        """Removes the parts at the front that one call can send from memory, and reads small regions."""
        buffers: list[Buffer] = []
        if self._skip:
            return buffers
        parts, read_ahead = self._parts, self._read_ahead
        size = filled = taken = 0
        for part in islice(parts, _BUFFERS_PER_CALL):
            if not isinstance(part, FileRegion | ScatteredRegion):
                buffers.append(part)
                size += len(part)
            elif read_ahead is None or (isinstance(part, FileRegion) and part.length > COPIED_RANGE_BYTES):
                break
            else:
                spans, space = part.spans, read_ahead.space
                room = COPIED_BYTES_PER_CALL - size
                count, length = read_ahead.read_cached(part.file, spans, space[filled : filled + room])
                if count:
                    buffers.append(space[filled : filled + length])
                    filled += length
                    size += length
                if count < len(spans):
                    if count and isinstance(part, ScatteredRegion):
                        parts[taken] = part.after(count, length)
                    break
            taken += 1
            if size >= COPIED_BYTES_PER_CALL:
                break
        for _ in range(taken):
            parts.popleft()
        return buffers

    def _send_buffers(self, buffers: list[Buffer]) -> int | None:
        """Sends buffers in one call, and puts back what the socket does not take; None if it is full."""
        size = sum(map(len, buffers))
        more = bool(self._parts) and (self._transport.joins_regions or size + len(self._parts[0]) <= JOINED_BYTES)
        if len(buffers) == 1:
            sent = self._transport.send(buffers[0], more=more)
        else:
            sent = self._transport.send_all(buffers, more=more)
        if sent == size:
            return size
        skip, first = sent or 0, 0
        while skip >= len(buffers[first]) and first + 1 < len(buffers):
            skip -= len(buffers[first])
            first += 1
        buffers[first] = memoryview(buffers[first])[skip:]
        self._parts.extendleft([self._kept(buffer) for buffer in reversed(buffers[first:])])
        return sent

    def _kept(self, buffer: Buffer) -> Buffer:
        """A buffer, or a copy of it if all connections use its memory."""
        is_shared = (
            self._read_ahead is not None and isinstance(buffer, memoryview) and buffer.obj is self._read_ahead.space.obj
        )
        return bytes(buffer) if is_shared else buffer

    def _send_region(self, budget: int) -> int | None:
        """Sends from the region at the front; None if the socket is full or the region is not in the page cache."""
        parts, skip = self._parts, self._skip
        region = parts[0]
        if isinstance(region, ScatteredRegion):
            parts.popleft()
            if len(region.spans) > 1:
                parts.appendleft(region.after(1, region.spans[0][1]))
            region = FileRegion(region.file, *region.spans[0])
            parts.appendleft(region)
        assert isinstance(region, FileRegion)
        left = region.length - skip
        limit = left if left <= budget else min(left, budget + self._extra_bytes())
        if self._read_ahead is not None:
            limit = self._sendable_bytes(self._read_ahead, region, limit)
            if not limit:
                self.uncached = self._uncached(region)
                return None
        sent = self._send_file(region, skip, limit)
        if sent == left:
            self._parts.popleft()
            self._skip = self._known_until = 0
            return sent
        self._skip = skip + sent
        return sent if sent == limit else None

    def _uncached(self, region: FileRegion) -> Uncached:
        """The region at the front, with what is sent after it."""
        for part in islice(self._parts, 1, _PARTS_TO_NEXT_REGION):
            if isinstance(part, ScatteredRegion):
                return Uncached(region, self._skip, part.spans if part.file is region.file else ())
            if isinstance(part, FileRegion):
                return Uncached(region, self._skip, next_region=part)
        return Uncached(region, self._skip)

    def _extra_bytes(self) -> int:
        """How much more than MAX_BYTES_PER_CALL this call may send (rule 2)."""
        is_loop_shared = self._is_loop_shared
        if is_loop_shared is None or is_loop_shared(int(self._clock() * 1000) - ALONE_MS):
            return 0
        return MAX_BYTES_ALONE - MAX_BYTES_PER_CALL

    def _send_file(self, region: FileRegion, skip: int, limit: int) -> int:
        """Sends at most `limit` bytes of a region until the socket is full (rule 6); returns their number."""
        send_file, sent = self._transport.send_file, 0
        while sent < limit:
            count = send_file(region, skip + sent, limit - sent)
            if count is None:
                if sent:
                    self._vain_tries += 1
                break
            if not count:
                raise RegionEnded("a log file ended before the region that was being sent")
            if sent:
                self._vain_tries = 0
            sent += count
            if self._vain_tries >= _MAX_VAIN_TRIES and sent < limit:
                self._short_writes = (self._short_writes + 1) % _SHORT_WRITES_PER_TRY
                if self._short_writes:
                    break
        return sent

    def _sendable_bytes(self, read_ahead: ReadAhead, region: FileRegion, limit: int) -> int:
        """How much of the region at the front can be sent without waiting for the disk, at most `limit`.

        The page cache is queried once for each piece. What the socket did not take of it is usually still cached: after
        `_KNOWN_S` only its next byte is queried, since a query for all of it costs as much as sending it. A longer rest
        than MAX_BYTES_PER_CALL is queried again.
        """
        skip, now_s = self._skip, self._clock()
        left, is_fresh = self._known_until - skip, now_s < self._known_before_s
        if left > 0 and (is_fresh or left <= MAX_BYTES_PER_CALL):
            return min(left, limit) if is_fresh or read_ahead.is_cached(region, skip, 1) else 0
        is_cached = read_ahead.is_cached(region, skip, limit)
        if not is_cached and limit > MAX_BYTES_PER_CALL:  # the disk is read in shorter pieces
            limit = MAX_BYTES_PER_CALL
            is_cached = read_ahead.is_cached(region, skip, limit)
        if not is_cached:
            return 0
        self._known_until, self._known_before_s = skip + limit, now_s + _KNOWN_S
        return limit

    def resume_after_prefetch(self, data: bytes | None) -> None:
        """Continues after a read from disk: `data` are the first uncached bytes; None means that the region is cached now.

        Raises:
            RegionEnded: `data` is empty, as the file is shorter than its region.
        """
        assert self.uncached is not None
        region, skip, self.uncached = self.uncached.region, self.uncached.skip, None
        self._known_until = 0
        if data is not None:
            if not data:
                raise RegionEnded("a log file ended before the region that was to be read")
            done = skip + len(data)
            self._parts.popleft()
            if done < region.length:
                self._parts.appendleft(FileRegion(region.file, region.position + done, region.length - done))
            self._parts.appendleft(data)
            self._skip = 0
