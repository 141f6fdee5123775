"""Sends a response, a sequence of parts, across partial writes.

RULES    1. Parts are sent in order: header bytes, file region, header bytes, file region, …
         2. One call sends at most `MAX_BYTES_PER_CALL`, so that one fast reader does not starve the other connections.
         3. Unsent parts cost the memory of their header bytes and one file reference; a region is never read into memory.
         4. A region is sent only as far as it is in the page cache; `uncached` is the first part that is not
            (page_cache_prefetch.py).
         5. While `is_holding`, small responses wait for the next one and are sent with it in one call.
NOT HERE When to send (`connection.py` watches the socket).
"""

from __future__ import annotations

from collections import deque

from broker.network.page_cache_prefetch import ReadAhead
from broker.network.socket_io import Buffer, PlaintextTransportLayer
from protocol.framing import Part
from protocol.records import FileRegion

MAX_BYTES_PER_CALL = 2 * 1024 * 1024
_BUFFERS_PER_CALL = 64
_SMALL_BYTES = 4096


class RegionEnded(Exception):
    """A log file is shorter than the region to send: the promised bytes do not exist, so the connection must be closed."""


class Sender:
    """The unsent parts of one connection."""

    __slots__ = ("_known_until", "_parts", "_read_ahead", "_skip", "_transport", "is_holding", "uncached")

    def __init__(self, transport: PlaintextTransportLayer, read_ahead: ReadAhead | None = None) -> None:
        """Without `read_ahead`, sending blocks on the disk."""
        self._transport = transport
        self._read_ahead = read_ahead
        self.uncached: tuple[FileRegion, int] | None = None
        """The region to read from disk before more is sent, and the offset in it."""
        self._parts: deque[Part] = deque()
        self._skip = 0  # bytes of the first part that are sent
        self._known_until = 0  # the first part is in the page cache up to this offset, as of the last query
        self.is_holding = False

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has everything."""
        return not self._parts

    def send(self, parts: list[Part]) -> bool:
        """Sends as much as the socket takes; returns whether all of it is sent or held."""
        if len(parts) == 1:  # most responses without records
            (part,) = parts
            if isinstance(part, FileRegion):
                pass
            elif self.is_holding and len(part) <= _SMALL_BYTES and len(self._parts) < _BUFFERS_PER_CALL:
                self._parts.append(part)
                return True
            elif not self._parts:
                sent = self._transport.send(part, more=False) or 0
                if sent == len(part):
                    return True
                self._skip = sent
                self._parts.append(part)
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
        parts = self._parts
        while parts and budget > 0:
            part = parts[0]
            if isinstance(part, FileRegion):
                limit = budget
                if self._read_ahead is not None:
                    limit = self._sendable_bytes(self._read_ahead, part, budget)
                    if not limit:
                        self.uncached = part, self._skip
                        return False
                sent = self._transport.send_file(part, self._skip, limit)
                if sent == 0 and part.length > self._skip:
                    raise RegionEnded("a log file ended before the region that was being sent")
            else:
                sent = self._send_buffers()
            if sent is None:
                return False
            budget -= sent
            self._advance(sent)
        return not parts

    def _sendable_bytes(self, read_ahead: ReadAhead, region: FileRegion, budget: int) -> int:
        """How much of the region at the front can be sent without waiting for the disk.

        The page cache is queried once for each piece. What the socket did not take of it is usually still cached: then only its
        next byte is queried, since a query for all of it costs as much as sending it.
        """
        skip = self._skip
        left = self._known_until - skip
        if left > 0:
            return min(left, budget) if read_ahead.is_cached(region, skip, 1) else 0
        if not read_ahead.is_cached(region, skip, budget):
            return 0
        self._known_until = skip + min(budget, region.length - skip)
        return budget

    def resume_after_prefetch(self, data: bytes | None) -> None:
        """Continues after a read from disk: `data` are the first uncached bytes; None means that the region is cached now."""
        assert self.uncached is not None
        (region, skip), self.uncached = self.uncached, None
        self._known_until = 0
        if data:
            done = skip + len(data)
            self._parts[0] = FileRegion(region.file, region.position + done, region.length - done)
            self._parts.appendleft(data)
            self._skip = 0

    def _send_buffers(self) -> int | None:
        """Sends the byte parts at the front in one call."""
        parts = self._parts
        buffers: list[Buffer] = []
        for part in parts:
            if isinstance(part, FileRegion) or len(buffers) == _BUFFERS_PER_CALL:
                break
            buffers.append(part)
        more = len(parts) > len(buffers)
        if self._skip:
            buffers[0] = memoryview(buffers[0])[self._skip :]
        if len(buffers) == 1:
            return self._transport.send(buffers[0], more=more)
        return self._transport.send_all(buffers, more=more)

    def _advance(self, sent: int) -> None:
        parts = self._parts
        skip = self._skip + sent
        while parts:
            part = parts[0]
            length = part.length if isinstance(part, FileRegion) else len(part)
            if skip < length:
                break
            skip -= length
            parts.popleft()
            self._known_until = 0
        self._skip = skip
