"""One client: read frames, have one request at a time answered, send answers in order (seeds.md Z4; design D3).

RULES    1. Requests are begun, and answered, in the order in which they came. One is in work, its answer's sending
            included; behind one that waits, those that it lets begin (`Later.lets_begin`) may be begun, a few.
         2. The socket is watched for writing only while something is unsent, and for reading only while little waits.
         3. A request that can be answered at once is answered in the same callback: no task, no future.
         4. A muted connection (throttled: `ConnectionInfo.muted_until_mono_ms`) gets its answer, then no work until then.
         5. A peer that breaks the protocol costs one log line and its connection, never more.
         6. Where an answer's records must come from the disk first, the connection waits for a reader thread, watching
            nothing; the loop does not wait (page_cache_prefetch.py).
         7. Small answers to requests that came together, or that were waited for together, leave together: a producer with
            five requests in flight costs fewer system calls.
         8. What was received and led to no sending is followed by another look: libuv tells of a reset that came with
            data once, as readable, and then watches no more. Sending would fail; silence would keep the descriptor.
NOT HERE Accepting (`listener.py`), what a request means (`handlers/`), how parts leave (`sender.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from broker.network.exchange import CloseConnection, ConnectionInfo, Dispatch, Later
from broker.network.page_cache_prefetch import Scan, Warmer
from broker.network.sender import RegionEnded, Sender
from broker.network.socket_io import Wire
from protocol.errors import MalformedRequest
from protocol.framing import FrameReader, Part
from storage.io.disk import StorageError

_log = logging.getLogger("barnabas.network")

_WAITING_FRAMES = 8
_WAITING_BYTES = 1024 * 1024
"""Frames and bytes that may wait behind a request in work before the socket is left unread."""
_IN_WORK = 64
_IN_WORK_BYTES = 1024 * 1024
"""Requests and bytes of a connection whose answers are waited for at a time."""


class _Turn:
    """A request whose answer has not come, or waits behind one that has not."""

    __slots__ = ("_connection", "is_ready", "later", "parts", "reason", "size")

    def __init__(self, connection: Connection, size: int) -> None:
        self._connection = connection
        self.size = size
        self.later: Later | None = None
        self.is_ready = False
        self.parts: list[Part] | None = None
        self.reason: str | None = None
        """Why the connection ends instead of an answer."""

    def deliver(self, parts: list[Part] | None) -> None:
        """The answer has come (on the loop)."""
        self.parts = parts
        self.is_ready = True
        self._connection.delivered(self)

    def end(self, reason: str) -> None:
        """The connection is to end when it is this one's turn."""
        self.reason = reason
        self.deliver(None)


class Connection:
    """The life of one accepted socket; everything happens in the loop's callbacks."""

    __slots__ = (
        "_dispatch", "_frames", "_in_work_bytes", "_is_answering", "_is_muted", "_is_reading", "_is_thawing",
        "_is_unsent", "_is_writing", "_looks_again", "_loop", "_on_close", "_reader", "_scan", "_sender", "_turns",
        "_wire", "info", "is_closed", "last_active_mono_ms",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: Wire,
        info: ConnectionInfo,
        dispatch: Dispatch,
        reader: FrameReader,
        on_close: Callable[[Connection], None],
        warmer: Warmer | None = None,
    ) -> None:
        self._loop = loop
        self._wire = wire
        self.info = info
        self._dispatch = dispatch
        self._reader = reader
        self._on_close = on_close
        self._scan = None if warmer is None else Scan(warmer)
        self._sender = Sender(wire, self._scan)
        self._frames: deque[bytearray] = deque()
        self._turns: deque[_Turn] = deque()
        self._in_work_bytes = 0
        self._is_unsent = False
        self._is_muted = False
        self._is_answering = False
        self._is_reading = False
        self._is_writing = False
        self._is_thawing = False
        self._looks_again = False
        self.is_closed = False
        self.last_active_mono_ms = time.monotonic_ns() // 1_000_000

    def start(self) -> None:
        """Begin to read."""
        self._watch_reading(wanted=True)

    def close(self) -> None:
        """End the connection now; a waiting request is cancelled."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watch_reading(wanted=False)
        self._watch_writing(wanted=False)
        if self._sender.is_idle:
            self._wire.close()
        else:  # half an answer is of no use, and the kernel would keep it for a peer that never reads
            self._wire.reset()
        self._frames.clear()
        turns, self._turns = self._turns, deque()
        for turn in turns:
            if turn.later is not None:
                turn.later.cancel()
        if self.info.on_close is not None:
            self.info.on_close()
        self._on_close(self)

    # ------------------------------------------------------------ reading
    def _on_readable(self) -> None:
        try:
            count = self._wire.receive(self._reader.space())
            if count is None:
                return
            if count == 0:
                self.close()
                return
            frames = self._reader.received(count)
        except MalformedRequest as error:
            self._end_because(str(error))
            return
        except OSError:  # reset by the peer: the usual end of a client that was killed
            self.close()
            return
        if not frames:
            self._look_again()
            return
        if len(frames) == 1 and not self._frames and self._may_begin(frames[0]):
            self._serve(frames[0])
            return
        self._frames.extend(frames)
        self._serve_waiting()

    def _look_again(self) -> None:
        """Receive once more, soon: see rule 7."""
        if not self._looks_again:
            self._looks_again = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks_again = False
        if self._is_reading:
            self._on_readable()

    def _serve_waiting(self) -> None:
        frames, sender = self._frames, self._sender
        while frames and not self.is_closed and self._may_begin(frames[0]):
            sender.is_holding = len(frames) > 1
            self._serve(frames.popleft())
        sender.is_holding = False
        self._release()
        if not self.is_closed:
            waiting_bytes = sum(map(len, frames))
            self._watch_reading(wanted=len(frames) < _WAITING_FRAMES and waiting_bytes < _WAITING_BYTES)

    def _may_begin(self, frame: bytearray) -> bool:
        if self._is_unsent or self._is_muted:
            return False
        turns = self._turns
        if not turns:
            return True
        first = turns[0].later
        return (
            len(turns) < _IN_WORK
            and first is not None
            and first.lets_begin(frame)
            and turns[-1].reason is None
            and self._in_work_bytes + len(frame) <= _IN_WORK_BYTES
        )

    def _serve(self, frame: bytearray) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        self.last_active_mono_ms = now_ms
        try:
            answer = self._dispatch(frame, self.info, now_ms)
        except (MalformedRequest, CloseConnection) as error:
            if self._turns:
                self._take_turn(frame).end(str(error))
            else:
                self._end_because(str(error))
            return
        if answer is None:
            self._look_again()
        elif not isinstance(answer, list):
            turn = self._take_turn(frame)
            turn.later = answer
            answer.deliver_to(turn.deliver, turn.end)
            if not turn.is_ready:
                self._look_again()
        elif self._turns:
            self._take_turn(frame).deliver(answer)
        else:
            self._send(answer)

    def _take_turn(self, frame: bytearray) -> _Turn:
        turn = _Turn(self, len(frame))
        self._turns.append(turn)
        self._in_work_bytes += turn.size
        return turn

    def delivered(self, turn: _Turn) -> None:
        """The answer of a turn has come (on the loop)."""
        turns = self._turns
        if self.is_closed or turn is not turns[0]:
            return
        if len(turns) == 1:
            self._answer()
        elif not self._is_answering:  # others may come in this turn of the loop, and leave with it (rule 7)
            self._is_answering = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        """Send what has come, up to the first answer that has not."""
        self._is_answering = False
        turns, sender = self._turns, self._sender
        while turns and turns[0].is_ready and not self.is_closed:
            turn = turns.popleft()
            self._in_work_bytes -= turn.size
            sender.is_holding = bool(turns) and turns[0].is_ready
            if turn.reason is not None:
                self._end_because(turn.reason)
            elif turn.parts is not None:
                self._send(turn.parts)
        sender.is_holding = False
        self._release()
        if self._frames and not self.is_closed:
            self._loop.call_soon(self._serve_waiting)

    # ------------------------------------------------------------ writing
    def _release(self) -> None:
        """Send the answers that were held and had no other behind them."""
        if not (self.is_closed or self._is_writing or self._is_thawing or self._sender.is_idle):
            self._send([])

    def _send(self, parts: list[Part]) -> None:
        if self.info.muted_until_mono_ms:
            self._sender.is_holding = False
        try:
            done = self._sender.send(parts)
        except (OSError, RegionEnded) as error:
            self._lose(error)
            return
        self._is_unsent = not done
        if not done:
            self._await_room()
            return
        if self._is_writing:
            self._watch_writing(wanted=False)
        if self.info.muted_until_mono_ms:
            self._mute()

    def _mute(self) -> None:
        """Begin nothing until the mute is over."""
        if self._is_muted:  # then it is looked again
            return
        left_ms = self.info.muted_until_mono_ms - time.monotonic_ns() // 1_000_000
        self.info.muted_until_mono_ms = 0
        if left_ms > 0:
            self._is_muted = True
            self._loop.call_later(left_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._is_muted = False
        self._go_on()

    def _go_on(self) -> None:
        """Everything is sent: take the next request, unless a mute holds."""
        if self.is_closed:
            return
        if self.info.muted_until_mono_ms:
            self._mute()
        self._serve_waiting()

    def _on_writable(self) -> None:
        self.last_active_mono_ms = time.monotonic_ns() // 1_000_000
        try:
            done = self._sender.resume()
        except (OSError, RegionEnded) as error:
            self._lose(error)
            return
        if not done:
            self._await_room()
        else:
            self._is_unsent = False
            self._watch_writing(wanted=False)
            self._go_on()

    def _await_room(self) -> None:
        """Not everything was sent: go on when the socket has room, or when the disk has answered."""
        cold = self._sender.cold
        self._watch_writing(wanted=cold is None)
        if cold is not None and not self._is_thawing:
            assert self._scan is not None
            self._is_thawing = True
            self._scan.fetch(*cold, self._thawed)

    def _thawed(self, data: bytes | None, error: StorageError | None) -> None:
        """The disk has answered (on the loop)."""
        self._is_thawing = False
        if self.is_closed:
            return
        if error is not None:
            _log.warning("closing %s: %s", self._peer(), error)
            self.close()
            return
        self._sender.thaw(data)
        self._on_writable()

    def _lose(self, error: Exception) -> None:
        if isinstance(error, RegionEnded):
            _log.warning("closing %s: %s", self._peer(), error)
        self.close()

    # ------------------------------------------------------------ watching
    def _watch_reading(self, *, wanted: bool) -> None:
        if wanted is self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._loop.add_reader(self._wire.fileno(), self._on_readable)
        else:
            self._loop.remove_reader(self._wire.fileno())

    def _watch_writing(self, *, wanted: bool) -> None:
        if wanted is self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._wire.fileno(), self._on_writable)
        else:
            self._loop.remove_writer(self._wire.fileno())

    def _end_because(self, reason: str) -> None:
        _log.warning("closing %s: %s", self._peer(), reason)
        self._release()
        self.close()

    def _peer(self) -> str:
        return f"{self.info.peer_host}:{self.info.peer_port}"
