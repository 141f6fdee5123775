"""The life of one connection over a fake loop and a fake wire: order, back pressure, mute, cancellation."""

from __future__ import annotations

import struct

import pytest

from broker.handlers.router import Pending
from broker.network import connection as module
from broker.network.connection import Connection
from broker.network.exchange import CloseConnection, ConnectionInfo
from protocol.errors import MalformedRequest
from protocol.framing import FrameReader


class FakeLoop:
    """Remembers what is watched; the test calls."""

    def __init__(self) -> None:
        self.readers, self.writers, self.soon, self.later = {}, {}, [], []

    def add_reader(self, fd, callback):
        self.readers[fd] = callback

    def remove_reader(self, fd):
        self.readers.pop(fd, None)

    def add_writer(self, fd, callback):
        self.writers[fd] = callback

    def remove_writer(self, fd):
        self.writers.pop(fd, None)

    def call_soon(self, callback, *arguments):
        self.soon.append((callback, arguments))

    def call_later(self, delay_s, callback):
        self.later.append((delay_s, callback))

    def run_soon(self) -> None:
        while self.soon:
            callback, arguments = self.soon.pop(0)
            callback(*arguments)


class FakeWire:
    """What was received in pieces, and what was sent as far as there was room."""

    def __init__(self) -> None:
        self.incoming: list[bytes] = []
        self.sent = b""
        self.room = 10**9
        self.sends = 0
        self.is_closed = self.is_reset = self.is_reset_by_peer = False

    def fileno(self) -> int:
        return 7

    def receive(self, space):
        if not self.incoming:
            if self.is_reset_by_peer:
                raise ConnectionResetError
            return None
        piece = self.incoming.pop(0)
        space[: len(piece)] = piece
        return len(piece)

    def send_all(self, buffers, *, more):
        return self.send(b"".join(buffers), more=more)

    def send(self, buffer, *, more):
        self.sends += 1
        taken = bytes(buffer[: self.room])
        self.room -= len(taken)
        self.sent += taken
        return len(taken) if taken or not buffer else None

    def close(self) -> None:
        self.is_closed = True

    def reset(self) -> None:
        self.is_closed = self.is_reset = True


class Later(Pending):
    """An answer that comes later; it lets requests be begun that begin with "overlapping", if its own does."""

    def lets_begin(self, frame):
        return self.lets_next_begin and frame.startswith(b"overlapping")


class World:
    """One connection; each frame's first byte says how it is answered."""

    def __init__(self) -> None:
        self.loop, self.wire = FakeLoop(), FakeWire()
        self.info = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
        self.pending: dict[bytes, Pending] = {}
        self.closed: list[Connection] = []
        self.connection = Connection(
            self.loop, self.wire, self.info, self.dispatch, FrameReader(1 << 26, bytearray(1 << 22)), self.closed.append
        )
        self.connection.start()

    def dispatch(self, frame, info, mono_ms):
        body = bytes(frame)
        if body.startswith((b"later", b"overlapping")) and not body.endswith((b" broken", b" close", b" now")):
            self.pending[body] = Later(lets_next_begin=body.startswith(b"overlapping"))
            return self.pending[body]
        if body.startswith(b"never"):
            return None
        if body.endswith(b"broken"):
            raise MalformedRequest("broken on purpose")
        if body.endswith(b"close"):
            raise CloseConnection("closed on purpose")
        if body.startswith(b"mute"):
            info.muted_until_mono_ms = mono_ms + 5000
        return [body + b";"]

    def receive(self, *bodies: bytes) -> None:
        stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        self.receive_bytes(stream)

    def receive_bytes(self, stream: bytes) -> None:
        self.wire.incoming.append(stream)
        self.loop.readers[7]()


def test_answers_leave_in_the_order_of_the_requests_though_one_comes_later() -> None:
    """Rule 1."""
    world = World()
    world.receive(b"a", b"later1", b"b", b"never", b"c")
    assert world.wire.sent == b"a;"
    world.pending[b"later1"].complete([b"later1;"])
    world.loop.run_soon()
    assert world.wire.sent == b"a;later1;b;c;"


def test_a_request_does_not_pass_one_that_waits_for_its_turn() -> None:
    """Rule 1, between an answer that has come and the turn of the loop that takes the next request."""
    world = World()
    world.receive(b"later1", b"a")
    world.pending[b"later1"].complete([b"later1;"])
    world.receive(b"b")
    world.loop.run_soon()
    assert world.wire.sent == b"later1;a;b;"


def test_small_answers_to_requests_that_came_together_leave_together() -> None:
    """Rule 6: also where the last of them has no answer, and none is held back."""
    world = World()
    world.receive(b"a", b"b", b"c")
    assert (world.wire.sent, world.wire.sends) == (b"a;b;c;", 1)
    world.receive(b"d", b"never")
    assert (world.wire.sent, world.wire.sends) == (b"a;b;c;d;", 2)


def test_large_answers_are_not_held() -> None:
    """Rule 6: what waits for company is small, so a connection holds little."""
    world = World()
    large = bytes(5000)
    world.receive(large, b"a", large, b"b")
    assert (world.wire.sent, world.wire.sends) == (large + b";a;" + large + b";b;", 3)


@pytest.mark.parametrize("last", [b"broken", b"close"])
def test_what_was_answered_is_sent_before_the_connection_ends(last: bytes) -> None:
    """Rules 5 and 6."""
    world = World()
    world.receive(b"a", b"b", last)
    assert world.wire.sent == b"a;b;"
    assert world.wire.is_closed
    assert not world.wire.is_reset


def test_a_request_in_work_stays_the_only_one_while_earlier_answers_leave() -> None:
    """Rules 1 and 6: answers that were held go out in pieces, and the next frame goes on waiting."""
    world = World()
    world.wire.room = 1
    world.receive(b"a", b"later1", b"later2")
    assert (world.wire.sent, list(world.pending)) == (b"a", [b"later1"])
    world.wire.room = 10**9
    world.loop.writers[7]()
    assert (world.wire.sent, list(world.pending), world.loop.writers) == (b"a;", [b"later1"], {})
    world.pending[b"later1"].complete([b"later1;"])
    world.loop.run_soon()
    assert (world.wire.sent, list(world.pending)) == (b"a;later1;", [b"later1", b"later2"])


def test_the_end_of_what_was_held_leaves_with_the_answer_that_came_meanwhile() -> None:
    """Rules 2 and 6."""
    world = World()
    world.wire.room = 1
    world.receive(b"a", b"later1")
    world.wire.room = 10**9
    world.pending[b"later1"].complete([b"later1;"])
    assert (world.wire.sent, world.loop.writers) == (b"a;later1;", {})


def test_an_answer_that_is_there_already_is_sent_at_once() -> None:
    """seeds.md Z4: a Pending may be completed before it is returned."""
    world = World()
    done = Later()
    done.complete([b"done;"])
    world.dispatch = None
    world.connection._dispatch = lambda frame, info, mono_ms: done
    world.receive(b"x")
    assert world.wire.sent == b"done;"


def test_the_socket_is_watched_for_writing_only_while_something_is_unsent() -> None:
    """Rule 2, seeds.md Z3: write interest on and off; the next request waits for the whole answer."""
    world = World()
    world.wire.room = 3
    world.receive(b"long answer", b"next")
    assert (world.wire.sent, list(world.loop.writers)) == (b"lon", [7])
    world.wire.room = 10**9
    world.loop.writers[7]()
    assert (world.wire.sent, list(world.loop.writers)) == (b"long answer;next;", [])


@pytest.mark.parametrize("waiting", [[b"x"] * module._WAITING_FRAMES, [b"x" * module._WAITING_BYTES]])
def test_a_peer_that_sends_without_reading_is_not_read_any_more(waiting: list[bytes]) -> None:
    """Rule 2: back pressure by frames and by bytes, given up when the request in work is answered."""
    world = World()
    world.receive(b"later", *waiting)
    assert world.loop.readers == {}
    world.pending[b"later"].complete([b"later;"])
    world.loop.run_soon()
    assert list(world.loop.readers) == [7]
    assert world.wire.sent == b"later;" + b"".join(body + b";" for body in waiting)


def test_a_muted_connection_gets_its_answer_and_then_waits() -> None:
    """Rule 4: throttling delays the next request, not the answer."""
    world = World()
    world.receive(b"mute", b"next")
    assert world.wire.sent == b"mute;"
    ((delay_s, go_on),) = world.loop.later
    assert 4 < delay_s <= 5
    go_on()
    assert world.wire.sent == b"mute;next;"


def test_a_peer_that_leaves_cancels_what_waits() -> None:
    """The handler hears of it once; the answer that still comes goes nowhere."""
    world = World()
    world.receive(b"later")
    cancelled = []
    world.pending[b"later"].on_cancel = lambda: cancelled.append(True)
    world.receive_bytes(b"")
    world.pending[b"later"].complete([b"too late"])
    assert (world.wire.is_closed, cancelled, world.closed, world.wire.sent) == (True, [True], [world.connection], b"")
    assert (world.loop.readers, world.loop.writers) == ({}, {})


@pytest.mark.parametrize("room", [10, 3])
def test_a_connection_that_ends_with_half_an_answer_is_reset(room: int) -> None:
    """seeds.md Z3: the kernel must not keep for minutes what a stalled reader never took; a whole answer it delivers."""
    world = World()
    world.wire.room = room
    world.receive(b"answer")
    world.connection.close()
    assert (world.wire.is_closed, world.wire.is_reset) == (True, room == 3)


@pytest.mark.parametrize("body", [b"broken", b"close"])
def test_a_broken_peer_costs_one_log_line_and_its_connection(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Rule 5."""
    world = World()
    world.receive(b"a", body, b"b")
    assert (world.wire.sent, world.wire.is_closed, len(caplog.records)) == (b"a;", True, 1)


def test_a_frame_above_the_limit_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """docs/limits.md: nothing is allocated for it."""
    world = World()
    world.receive_bytes(struct.pack(">i", 1 << 30) + b"x")
    assert (world.wire.is_closed, len(caplog.records)) == (True, 1)


def test_a_pending_answer_may_end_the_connection_instead() -> None:
    """Produce with acks=0 has no other way to tell of an error."""
    world = World()
    world.receive(b"later")
    world.pending[b"later"].close("no way to say it")
    assert world.wire.is_closed


@pytest.mark.parametrize(
    "stream", [b"\0\0\0\x64half", struct.pack(">i", 5) + b"never"], ids=["half a frame", "no answer"]
)
def test_what_leads_to_no_sending_is_followed_by_another_look(stream: bytes) -> None:
    """A reset that came with the data is told once, as readable; nothing is sent that would fail."""
    world = World()
    world.receive_bytes(stream)
    world.wire.is_reset_by_peer = True
    world.loop.run_soon()
    assert world.wire.is_closed


def test_requests_that_may_be_begun_meanwhile_are_and_their_answers_leave_in_order_and_together() -> None:
    """Rules 1 and 7: a producer's requests wait for the same sync, and nothing else is begun behind them."""
    world = World()
    world.receive(b"overlapping1", b"overlapping2", b"overlapping3", b"other")
    assert list(world.pending) == [b"overlapping1", b"overlapping2", b"overlapping3"]
    world.pending[b"overlapping2"].complete([b"2;"])
    world.loop.run_soon()
    assert world.wire.sent == b""
    world.pending[b"overlapping1"].complete([b"1;"])
    world.pending[b"overlapping3"].complete([b"3;"])
    world.loop.run_soon()
    assert (world.wire.sent, world.wire.sends) == (b"1;2;3;other;", 2)


def test_a_request_that_waits_without_letting_others_begin_is_alone() -> None:
    """Rule 1: the first says who may be begun, and one of another kind waits until all are answered."""
    world = World()
    world.receive(b"later", b"overlapping")
    assert list(world.pending) == [b"later"]
    world.pending[b"later"].complete([b"later;"])
    world.loop.run_soon()
    world.receive(b"later2")
    assert list(world.pending) == [b"later", b"overlapping"]


@pytest.mark.parametrize("last", [b"overlapping broken", b"overlapping close"])
def test_the_connection_ends_when_it_is_the_turn_of_who_ends_it(last: bytes) -> None:
    """Rules 1 and 5: what was begun before is answered, nothing behind is begun."""
    world = World()
    world.receive(b"overlapping1", last, b"overlapping2")
    assert list(world.pending) == [b"overlapping1"]
    assert not world.wire.is_closed
    world.pending[b"overlapping1"].complete([b"1;"])
    world.loop.run_soon()
    assert (world.wire.sent, world.wire.is_closed) == (b"1;", True)


def test_an_answer_at_once_waits_for_those_before_it() -> None:
    """Rule 1: a refusal is known at once, what it follows is not."""
    world = World()
    world.receive(b"overlapping1", b"overlapping now")
    assert world.wire.sent == b""
    world.pending[b"overlapping1"].complete([b"1;"])
    world.loop.run_soon()
    assert world.wire.sent == b"1;overlapping now;"


@pytest.mark.parametrize("size", [14, 300_000])
def test_few_requests_are_in_work_at_a_time(size: int) -> None:
    """docs/limits.md: by their number and by their bytes; then frames wait, and then the socket; again and again."""
    world = World()
    most = min(module._IN_WORK, module._IN_WORK_BYTES // size)
    bodies = [
        b"overlapping" + b"%03d" % number + b"." * size for number in range(3 * (most + 2 * module._WAITING_FRAMES))
    ]
    for _ in range(3):
        while world.loop.readers:
            world.receive(bodies.pop()[:size])
        assert len(world.pending) == most
        for name in list(world.pending):
            world.pending.pop(name).complete([b";"])
        world.loop.run_soon()


def test_a_peer_that_leaves_cancels_all_that_waits() -> None:
    world = World()
    world.receive(b"overlapping1", b"overlapping2")
    cancelled = []
    for name, pending in world.pending.items():
        pending.on_cancel = lambda name=name: cancelled.append(name)
    world.receive_bytes(b"")
    assert cancelled == [b"overlapping1", b"overlapping2"]


def test_a_mute_among_several_answers_holds_for_the_next_request() -> None:
    """Rule 4."""
    world = World()
    world.receive(b"overlapping1", b"overlapping2")
    world.info.muted_until_mono_ms = module.time.monotonic_ns() // 1_000_000 + 5000
    for pending in world.pending.values():
        pending.complete([b"x;"])
    world.loop.run_soon()
    world.receive(b"next")
    assert world.wire.sent == b"x;x;"
    ((_, go_on),) = world.loop.later
    go_on()
    assert world.wire.sent == b"x;x;next;"
