"""One connection over a fake loop and a fake socket: what it receives, sends, watches and schedules."""

from __future__ import annotations

import struct
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any, cast

from broker.network.connection import Connection
from broker.network.exchange import CloseConnection, ConnectionInfo, Dispatcher
from broker.network.socket_io import PlaintextTransportLayer
from protocol.errors import MalformedRequest
from protocol.framing import FrameReader
from protocol.primitives import Buffer
from replication.completion import Completion


class FakeTimer:
    """A scheduled callback."""

    def __init__(self, when_s: float, callback: Callable[[], object]) -> None:
        self.when_s, self.callback, self.is_cancelled = when_s, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """Records what is watched; the test calls."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}
        self.writers: dict[int, Callable[[], object]] = {}
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.timers: list[FakeTimer] = []
        self.now_s = 100.0

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def add_writer(self, fd: int, callback: Callable[[], object]) -> None:
        self.writers[fd] = callback

    def remove_writer(self, fd: int) -> None:
        self.writers.pop(fd, None)

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(when_s, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Runs the timers that are due after this time."""
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.when_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer.when_s > self.now_s]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()

    def run_soon(self) -> None:
        while self.soon:
            callback, arguments = self.soon.pop(0)
            callback(*arguments)


class FakeTransport:
    """Received pieces, and what was sent as far as there was room."""

    def __init__(self) -> None:
        self.incoming: list[bytes] = []
        self.sent = b""
        self.room = 10**9
        self.sends = 0
        self.has_buffered = self.joins_regions = False
        self.is_closed = self.is_reset = self.is_reset_by_peer = False

    def fileno(self) -> int:
        return 7

    def receive(self, space: bytearray | memoryview) -> int | None:
        if not self.incoming:
            if self.is_reset_by_peer:
                raise ConnectionResetError
            return None
        piece = self.incoming.pop(0)
        space[: len(piece)] = piece
        return len(piece)

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        return self.send(b"".join(buffers), more=more)

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        self.sends += 1
        taken = bytes(buffer[: self.room])
        self.room -= len(taken)
        self.sent += taken
        return len(taken) if taken or not buffer else None

    def close(self) -> None:
        self.is_closed = True

    def reset(self) -> None:
        self.is_closed = self.is_reset = True


class ConnectionHarness:
    """One connection; the first byte of a frame selects its response."""

    def __init__(self) -> None:
        self.loop, self.transport = FakeLoop(), FakeTransport()
        self.info = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
        self.pending: dict[bytes, Completion[Any]] = {}
        self.closed: list[Connection] = []
        self.connection = Connection(
            cast("AbstractEventLoop", self.loop),
            cast("PlaintextTransportLayer", self.transport),
            self.info,
            cast("Dispatcher", self),
            FrameReader(1 << 26, bytearray(1 << 22)),
            self.closed.append,
        )
        self.connection.start()

    def dispatch(self, frame: memoryview, info: Any, mono_ms: int) -> Any:
        body = bytes(frame)
        if body.startswith((b"later", b"overlapping", b"waits")) and not body.endswith(
            (b" broken", b" close", b" now")
        ):
            self.pending[body] = Completion()
            return self.pending[body]
        if body.startswith(b"never"):
            return None
        if body.startswith(b"mute"):
            info.mute(int(body[4:]))
        if body.endswith(b"broken"):
            try:
                struct.unpack(">i", b"")
            except struct.error:
                raise MalformedRequest("broken on purpose") from None
        if body.endswith(b"close"):
            raise CloseConnection("closed on purpose")
        return [body + b";"]

    def can_pipeline(self, frame: Buffer) -> bool:
        return bytes(frame).startswith(b"ov")  # an API key has two bytes

    def waits_for_clients(self, frame: Buffer) -> bool:
        return bytes(frame).startswith(b"wa")

    def receive(self, *bodies: bytes) -> None:
        self.receive_bytes(b"".join(struct.pack(">i", len(body)) + body for body in bodies))

    def complete(self, body: bytes, answer: bytes) -> None:
        """Completes a pending response, and runs what it scheduled."""
        self.pending[body].complete([answer])
        self.loop.run_soon()

    def receive_bytes(self, stream: bytes) -> None:
        self.transport.incoming.append(stream)
        self.loop.readers[7]()
