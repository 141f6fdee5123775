"""Sends a response, a chain of parts, over partial writes (seeds.md Z2, Z3; design D5).

RULES    1. Parts leave in order: header bytes, region, header bytes, region, …
         2. One turn sends at most `TURN_BYTES`, so that one fast reader does not own the loop.
         3. What is unsent costs its header bytes and one reference to a file; a region is never read.
         4. A region is sent only as far as it waits for no disk; `cold` says where it would (page_cache_prefetch.py).
         5. While `is_holding`, small answers wait for the next one, to leave with it in one call.
NOT HERE When to send (`connection.py` watches the socket).
"""

from __future__ import annotations

from collections import deque

from broker.network.page_cache_prefetch import Scan
from broker.network.socket_io import Buffer, Wire
from protocol.framing import Part
from protocol.records import FileRegion

TURN_BYTES = 2 * 1024 * 1024
_BUFFERS_PER_CALL = 64
_SMALL_BYTES = 4096


class RegionEnded(Exception):
    """A region's file ended early, so the promised bytes cannot be sent and the connection must end."""


class Sender:
    """The unsent parts of one connection."""

    __slots__ = ("_known_until", "_parts", "_scan", "_skip", "_wire", "bytes_sent", "cold", "is_holding")

    def __init__(self, wire: Wire, scan: Scan | None = None) -> None:
        """Without `scan` the disk is waited for."""
        self._wire = wire
        self._scan = scan
        self.cold: tuple[FileRegion, int] | None = None
        """The region that the disk must be asked for before anything more is sent, and from which byte of it."""
        self._parts: deque[Part] = deque()
        self._skip = 0  # bytes of the first part that are sent already
        self._known_until = 0  # up to where the first part was in the page cache when it was asked for
        self.bytes_sent = 0
        self.is_holding = False

    @property
    def is_idle(self) -> bool:
        """Whether everything has been handed to the kernel."""
        return not self._parts

    def send(self, parts: list[Part]) -> bool:
        """Send at once what goes; whether all of it went, or is held."""
        if len(parts) == 1:  # nearly every response without records
            (part,) = parts
            if isinstance(part, FileRegion):
                pass
            elif self.is_holding and len(part) <= _SMALL_BYTES and len(self._parts) < _BUFFERS_PER_CALL:
                self._parts.append(part)
                return True
            elif not self._parts:
                sent = self._wire.send(part, more=False) or 0
                self.bytes_sent += sent
                if sent == len(part):
                    return True
                self._skip = sent
                self._parts.append(part)
                return False
        self._parts.extend(parts)
        return self.resume()

    def resume(self) -> bool:
        """Send more of what is left, at most one turn's worth; whether nothing is left.

        Raises:
            OSError: the connection is broken; RegionEnded: a file ended before its region.
        """
        if self.cold is not None:
            return False
        budget = TURN_BYTES
        parts = self._parts
        while parts and budget > 0:
            part = parts[0]
            if isinstance(part, FileRegion):
                limit = budget
                if self._scan is not None:
                    limit = self._at_hand(self._scan, part, budget)
                    if not limit:
                        self.cold = part, self._skip
                        return False
                sent = self._wire.send_file(part, self._skip, limit)
                if sent == 0 and part.length > self._skip:
                    raise RegionEnded("a log file ended before the region that was being sent")
            else:
                sent = self._send_buffers()
            if sent is None:
                return False
            budget -= sent
            self.bytes_sent += sent
            self._advance(sent)
        return not parts

    def _at_hand(self, scan: Scan, region: FileRegion, budget: int) -> int:
        """How much of the region at the front can be sent now without waiting for the disk.

        A piece is asked for once. What the socket did not take of it is nearly always still there; its next byte speaks
        for it, since asking for all of it again would cost as much as sending it.
        """
        skip = self._skip
        left = self._known_until - skip
        if left > 0:
            return min(left, budget) if scan.is_at_hand(region, skip, 1) else 0
        if not scan.is_at_hand(region, skip, budget):
            return 0
        self._known_until = skip + min(budget, region.length - skip)
        return budget

    def thaw(self, data: bytes | None) -> None:
        """The disk was asked for what was cold: `data` are its first bytes, None when it can be sent as it is."""
        assert self.cold is not None
        (region, skip), self.cold = self.cold, None
        self._known_until = 0
        if data:
            done = skip + len(data)
            self._parts[0] = FileRegion(region.file, region.position + done, region.length - done)
            self._parts.appendleft(data)
            self._skip = 0

    def _send_buffers(self) -> int | None:
        """Send the run of byte parts at the front in one call."""
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
            return self._wire.send(buffers[0], more=more)
        return self._wire.send_all(buffers, more=more)

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
