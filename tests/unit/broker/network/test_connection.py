"""One connection over a fake loop and a fake socket (broker/network/connection.py)."""

from __future__ import annotations

import gc
import struct
import time
from collections.abc import Callable

import pytest

from broker.network import connection as module
from broker.network.connection import _REQUESTS_PER_TURN, Connection
from broker.network.exchange import CloseConnection
from broker.telemetry.request_metrics import SAMPLE_MASK, ApiMetrics
from replication.completion import completed
from tests.support.connection_harness import ConnectionHarness


@pytest.fixture
def harness() -> ConnectionHarness:
    return ConnectionHarness()


def test_bytes_that_the_socket_does_not_announce_are_received_when_reading_starts() -> None:
    harness = ConnectionHarness()
    harness.connection._watch_reading(wanted=False)
    harness.transport.has_buffered = True
    harness.transport.incoming.append(struct.pack(">i", 1) + b"a")
    harness.connection.start()
    harness.loop.run_soon()
    assert harness.transport.sent == b"a;"


def test_responses_are_sent_in_order_behind_a_deferred_one(harness: ConnectionHarness) -> None:
    harness.receive(b"a", b"later1", b"b", b"never", b"c")
    assert harness.transport.sent == b"a;"
    harness.complete(b"later1", b"later1;")
    assert harness.transport.sent == b"a;later1;b;c;"


def test_a_request_does_not_overtake_a_queued_one(harness: ConnectionHarness) -> None:
    harness.receive(b"later1", b"a")
    harness.pending[b"later1"].complete([b"later1;"])
    harness.receive(b"b")
    harness.loop.run_soon()
    assert harness.transport.sent == b"later1;a;b;"


def test_small_responses_to_requests_received_together_are_sent_in_one_call(harness: ConnectionHarness) -> None:
    harness.receive(b"a", b"b", b"c")
    assert (harness.transport.sent, harness.transport.sends) == (b"a;b;c;", 1)
    harness.receive(b"d", b"never")
    assert (harness.transport.sent, harness.transport.sends) == (b"a;b;c;d;", 2)


def test_many_queued_requests_leave_turns_to_other_connections(harness: ConnectionHarness) -> None:
    bodies = [b"%d" % number for number in range(3 * _REQUESTS_PER_TURN)]
    harness.receive(*bodies)
    assert harness.transport.sent.count(b";") == _REQUESTS_PER_TURN
    assert not harness.loop.readers, "nothing more is received meanwhile"
    harness.loop.run_soon()
    assert harness.transport.sent == b"".join(body + b";" for body in bodies)
    assert harness.loop.readers


def test_large_responses_are_not_held(harness: ConnectionHarness) -> None:
    large = bytes(5000)
    harness.receive(large, b"a", large, b"b")
    assert (harness.transport.sent, harness.transport.sends) == (large + b";a;" + large + b";b;", 3)


@pytest.mark.parametrize("last", [b"broken", b"close"])
def test_a_protocol_violation_logs_one_line_and_closes_the_connection_behind_complete_responses(
    harness: ConnectionHarness, last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    harness.receive(b"a", b"b", last, b"c")
    assert (harness.transport.sent, len(caplog.records)) == (b"a;b;", 1)
    assert (harness.transport.is_closed, harness.transport.is_reset) == (True, False)


def test_no_request_starts_behind_a_deferred_one_while_earlier_responses_are_sent(harness: ConnectionHarness) -> None:
    harness.transport.room = 1
    harness.receive(b"a", b"later1", b"later2")
    assert (harness.transport.sent, list(harness.pending)) == (b"a", [b"later1"])
    harness.transport.room = 10**9
    harness.loop.writers[7]()
    assert (harness.transport.sent, list(harness.pending), harness.loop.writers) == (b"a;", [b"later1"], {})
    harness.complete(b"later1", b"later1;")
    assert (harness.transport.sent, list(harness.pending)) == (b"a;later1;", [b"later1", b"later2"])


def test_unsent_bytes_are_sent_with_the_next_complete_response(harness: ConnectionHarness) -> None:
    harness.transport.room = 1
    harness.receive(b"a", b"later1")
    harness.transport.room = 10**9
    harness.pending[b"later1"].complete([b"later1;"])
    assert (harness.transport.sent, harness.loop.writers) == (b"a;later1;", {})


def test_a_deferred_response_that_is_complete_is_sent_immediately(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "dispatch", lambda *_: completed([b"done;"]))
    harness.receive(b"x")
    assert harness.transport.sent == b"done;"


def test_the_socket_is_watched_for_writing_only_while_bytes_are_unsent(harness: ConnectionHarness) -> None:
    harness.transport.room = 3
    harness.receive(b"long answer", b"next")
    assert (harness.transport.sent, list(harness.loop.writers)) == (b"lon", [7])
    harness.transport.room = 10**9
    harness.loop.writers[7]()
    assert (harness.transport.sent, list(harness.loop.writers)) == (b"long answer;next;", [])


@pytest.mark.parametrize("waiting", [[b"x"] * module._MAX_QUEUED_FRAMES, [b"x" * module._MAX_QUEUED_BYTES]])
def test_a_full_queue_stops_reading_until_the_request_is_answered(
    harness: ConnectionHarness, waiting: list[bytes]
) -> None:
    harness.receive(b"later", *waiting)
    assert harness.loop.readers == {}
    harness.complete(b"later", b"later;")
    assert list(harness.loop.readers) == [7]
    assert harness.transport.sent == b"later;" + b"".join(body + b";" for body in waiting)


@pytest.mark.parametrize("bodies", [[b"later"], [b"overlapping1", b"overlapping2"]], ids=["one", "several"])
def test_a_closed_connection_cancels_its_requests(harness: ConnectionHarness, bodies: list[bytes]) -> None:
    harness.receive(*bodies)
    cancelled = []
    for body, pending in harness.pending.items():
        pending.on_cancel = lambda body=body: cancelled.append(body)
    harness.connection.close()
    harness.pending[bodies[0]].complete([b"too late"])
    assert (cancelled, harness.closed) == (bodies, [harness.connection])
    assert (harness.transport.is_closed, harness.transport.sent) == (True, b"")
    assert (harness.loop.readers, harness.loop.writers) == ({}, {})


@pytest.mark.parametrize("room", [10, 3])
def test_a_connection_with_unsent_bytes_is_reset(harness: ConnectionHarness, room: int) -> None:
    harness.transport.room = room
    harness.receive(b"answer")
    harness.connection.close()
    assert (harness.transport.is_closed, harness.transport.is_reset) == (True, room == 3)


def test_a_frame_above_the_limit_closes_the_connection(
    harness: ConnectionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.receive_bytes(struct.pack(">i", 1 << 30) + b"x")
    assert (harness.transport.is_closed, len(caplog.records)) == (True, 1)


def test_a_deferred_response_may_close_the_connection(harness: ConnectionHarness) -> None:
    harness.receive(b"later")
    harness.pending[b"later"].fail(CloseConnection("no way to say it"))
    assert harness.transport.is_closed


def test_an_unexpected_error_of_a_response_reaches_the_event_loop(harness: ConnectionHarness) -> None:
    harness.receive(b"later")
    with pytest.raises(ZeroDivisionError):
        harness.pending[b"later"].fail(ZeroDivisionError())


@pytest.mark.parametrize(
    "stream", [b"\0\0\0\x64half", struct.pack(">i", 5) + b"never"], ids=["half a frame", "no answer"]
)
def test_a_receive_without_a_response_is_followed_by_another_receive(harness: ConnectionHarness, stream: bytes) -> None:
    harness.receive_bytes(stream)
    harness.transport.is_reset_by_peer = True
    harness.loop.run_soon()
    assert harness.transport.is_closed


def test_a_request_behind_a_waiting_one_is_followed_by_another_receive(harness: ConnectionHarness) -> None:
    harness.receive(b"later")
    harness.loop.run_soon()
    harness.receive(b"queued")
    harness.transport.is_reset_by_peer = True
    harness.loop.run_soon()
    assert harness.transport.is_closed


def test_a_waiting_request_is_followed_by_another_receive_unless_its_response_is_sent_soon(
    harness: ConnectionHarness,
) -> None:
    harness.receive(b"overlapping1", b"overlapping2")
    harness.transport.is_reset_by_peer = True
    harness.loop.run_soon()
    assert not harness.transport.is_closed
    other = ConnectionHarness()
    other.receive(b"later")
    other.transport.is_reset_by_peer = True
    other.loop.run_soon()
    assert other.transport.is_closed


def test_pipelined_requests_start_and_their_responses_are_sent_in_order_in_one_call(harness: ConnectionHarness) -> None:
    harness.receive(b"overlapping1", b"overlapping2", b"overlapping3", b"other")
    assert list(harness.pending) == [b"overlapping1", b"overlapping2", b"overlapping3"]
    harness.complete(b"overlapping2", b"2;")
    assert harness.transport.sent == b""
    harness.pending[b"overlapping1"].complete([b"1;"])
    harness.complete(b"overlapping3", b"3;")
    assert (harness.transport.sent, harness.transport.sends) == (b"1;2;3;other;", 2)


def test_without_pipelining_one_request_is_in_flight(harness: ConnectionHarness) -> None:
    harness.receive(b"later", b"overlapping")
    assert list(harness.pending) == [b"later"]
    harness.complete(b"later", b"later;")
    harness.receive(b"later2")
    assert list(harness.pending) == [b"later", b"overlapping"]


@pytest.mark.parametrize("last", [b"overlapping broken", b"overlapping close"])
def test_a_closing_request_waits_for_the_earlier_ones(harness: ConnectionHarness, last: bytes) -> None:
    harness.receive(b"overlapping1", last, b"overlapping2")
    assert list(harness.pending) == [b"overlapping1"]
    assert not harness.transport.is_closed
    harness.complete(b"overlapping1", b"1;")
    assert (harness.transport.sent, harness.transport.is_closed) == (b"1;", True)


def test_queued_requests_that_may_be_pipelined_are_served_at_the_end_of_the_stream(harness: ConnectionHarness) -> None:
    bodies = [b"overlapping%03d" % number for number in range(module._MAX_IN_FLIGHT + 3)]
    harness.receive(*bodies)
    harness.receive_bytes(b"")
    assert (list(harness.pending), harness.transport.is_closed) == (bodies[: module._MAX_IN_FLIGHT], False)
    for body in bodies[:2]:
        harness.pending[body].complete(None)  # acks=0
        harness.loop.run_soon()
    assert (list(harness.pending), harness.transport.is_closed) == (bodies[:-1], False)
    harness.pending[bodies[2]].complete(None)
    harness.loop.run_soon()
    assert (list(harness.pending), harness.transport.is_closed) == (bodies, False)
    for body in bodies[3:]:
        harness.complete(body, body + b";")
    assert harness.transport.sent == b"".join(body + b";" for body in bodies[3:])
    assert harness.transport.is_closed
    assert harness.loop.readers == {}


@pytest.mark.parametrize("room", [3, 10**9])
def test_a_producer_that_ends_its_stream_gets_its_response(harness: ConnectionHarness, room: int) -> None:
    harness.receive(b"overlapping")
    harness.receive_bytes(b"")
    assert (harness.transport.is_closed, harness.loop.readers) == (False, {})
    harness.transport.room = room
    harness.complete(b"overlapping", b"written;")
    if room == 3:
        assert (harness.transport.sent, harness.transport.is_closed) == (b"wri", False)
        harness.transport.room = 10**9
        harness.loop.writers[7]()
    assert (harness.transport.sent, harness.transport.is_closed) == (b"written;", True)


def test_requests_before_the_end_of_the_stream_are_served_and_answered(harness: ConnectionHarness) -> None:
    harness.transport.room = 1
    harness.receive(b"a", b"later", b"waits", b"b")
    harness.receive_bytes(b"")
    harness.transport.room = 10**9
    harness.loop.writers[7]()
    assert (harness.transport.sent, harness.transport.is_closed) == (b"a;", False)
    harness.complete(b"later", b"later;")
    assert (harness.transport.sent, harness.transport.is_closed) == (b"a;later;", False)
    harness.complete(b"waits", b"waits;")
    assert (harness.transport.sent, harness.transport.is_closed) == (b"a;later;waits;b;", True)
    assert not harness.transport.is_reset


@pytest.mark.parametrize("room", [1, 10**9])
def test_a_last_request_that_waits_for_other_clients_is_cancelled_at_the_end_of_the_stream(
    harness: ConnectionHarness, room: int
) -> None:
    harness.transport.room = room
    harness.receive(b"a", b"waits")
    harness.receive_bytes(b"")
    if room == 1:
        harness.transport.room = 10**9
        harness.loop.writers[7]()
    assert (harness.transport.sent, list(harness.pending), harness.transport.is_closed) == (b"a;", [b"waits"], True)
    assert harness.pending[b"waits"].is_cancelled


def test_an_immediate_response_waits_for_the_earlier_ones(harness: ConnectionHarness) -> None:
    harness.receive(b"overlapping1", b"overlapping now")
    assert harness.transport.sent == b""
    harness.complete(b"overlapping1", b"1;")
    assert harness.transport.sent == b"1;overlapping now;"


@pytest.mark.parametrize("size", [14, 300_000])
def test_requests_in_flight_are_limited_by_number_and_bytes(harness: ConnectionHarness, size: int) -> None:
    most = min(module._MAX_IN_FLIGHT, module._MAX_IN_FLIGHT_BYTES // size)
    bodies = [
        b"overlapping" + b"%03d" % number + b"." * size for number in range(3 * (most + 2 * module._MAX_QUEUED_FRAMES))
    ]
    for _ in range(3):
        while harness.loop.readers:
            harness.receive(bodies.pop()[:size])
        assert len(harness.pending) == most
        for name in list(harness.pending):
            harness.pending.pop(name).complete([b";"])
        harness.loop.run_soon()


def test_a_muted_connection_sends_its_response_and_serves_nothing_until_the_time_is_over(
    harness: ConnectionHarness,
) -> None:
    harness.receive(b"mute500", b"next")
    assert harness.transport.sent == b"mute500;"
    assert not harness.loop.readers
    harness.loop.advance(0.4)
    assert harness.transport.sent == b"mute500;"
    harness.loop.advance(0.2)
    assert harness.transport.sent == b"mute500;next;"
    harness.receive(b"more")
    assert harness.transport.sent.endswith(b"more;")


def test_the_longer_of_two_mutes_counts(harness: ConnectionHarness) -> None:
    harness.receive(b"mute500")
    harness.info.mute(2000)
    harness.info.mute(100)
    harness.loop.advance(1.9)
    assert not harness.loop.readers
    harness.loop.advance(0.2)
    assert list(harness.loop.readers) == [7]


def test_a_late_response_leaves_a_muted_connection_at_once(harness: ConnectionHarness) -> None:
    harness.receive(b"later")
    harness.info.mute(500)
    harness.complete(b"later", b"answer")
    assert harness.transport.sent == b"answer"
    assert not harness.loop.readers


@pytest.mark.parametrize("bodies", [[b"a broken"], [b"a", b"b broken"], [b"a close"], [b"later", b"a broken"]])
def test_a_closed_connection_is_freed_without_a_garbage_collection(bodies: list[bytes]) -> None:
    """Garbage that a collection must find keeps buffers until then, or forever if `gc.freeze` runs before."""
    gc.collect()
    gc.disable()
    try:
        harness = ConnectionHarness()
        harness.receive(*bodies)
        for body in harness.pending:
            harness.complete(body, b"later;")
            harness.loop.run_soon()
        assert harness.closed == [harness.connection]
        harness.closed.clear()
        del harness.connection
        assert not [found for found in gc.get_objects() if isinstance(found, Connection)]
    finally:
        gc.enable()


def test_a_closed_connection_keeps_no_incomplete_frame(harness: ConnectionHarness) -> None:
    harness.receive_bytes(struct.pack(">i", 1 << 25) + bytes(1000))
    reader = harness.connection._reader
    assert len(reader.space()) == (16 << 10) - 1000
    harness.connection.close()
    assert len(reader.space()) == 1 << 22


def test_a_muted_connection_that_is_closed_stays_closed(harness: ConnectionHarness) -> None:
    harness.receive(b"mute500", b"next")
    harness.connection.close()
    harness.loop.advance(1)
    assert harness.transport.sent == b"mute500;"
    assert not harness.loop.readers


# ---------------------------------------------------------------- times


def recorded(harness: ConnectionHarness) -> dict[str, int]:
    """How often each phase was recorded."""
    metrics = harness.info.metrics
    phases = ("total", "queue", "local", "remote", "response_queue", "send")
    return {phase: sum(getattr(metrics, phase).buckets) for phase in phases if sum(getattr(metrics, phase).buckets)}


@pytest.fixture
def timed(harness: ConnectionHarness) -> ConnectionHarness:
    harness.info.metrics = ApiMetrics("Produce", 9)
    return harness


def test_a_request_that_is_answered_at_once_is_timed(timed: ConnectionHarness) -> None:
    timed.receive(b"a")
    assert recorded(timed) == {"total": 1, "local": 1, "send": 1}


def test_a_request_without_an_answer_is_timed(timed: ConnectionHarness) -> None:
    timed.receive(b"never")
    assert recorded(timed) == {"total": 1, "local": 1, "send": 1}


def test_a_request_that_waits_is_timed_when_its_answer_is_sent(timed: ConnectionHarness) -> None:
    timed.receive(b"later")
    assert recorded(timed) == {}
    timed.complete(b"later", b"x")
    assert recorded(timed) == {"total": 1, "local": 1, "remote": 1, "send": 1}


def test_a_request_that_was_queued_is_timed_from_its_arrival(timed: ConnectionHarness) -> None:
    timed.receive(b"later", b"a")
    timed.complete(b"later", b"x")
    assert recorded(timed) == {"total": 2, "queue": 2, "local": 2, "remote": 1, "send": 2}


def test_a_large_answer_is_timed_when_the_socket_has_all_of_it(timed: ConnectionHarness) -> None:
    timed.transport.room = 1
    timed.receive(b"abc")
    assert recorded(timed) == {}
    timed.transport.room = 10**9
    timed.loop.writers[7]()
    assert recorded(timed) == {"total": 1, "local": 1, "send": 1}


def test_a_request_that_closes_its_connection_is_not_timed(timed: ConnectionHarness) -> None:
    timed.receive(b"a broken")
    assert recorded(timed) == {}


@pytest.mark.parametrize("waits", [False, True])
def test_of_many_requests_some_are_timed_for_all(timed: ConnectionHarness, *, waits: bool) -> None:
    timed.info.metrics.sample_mask, timed.info.metrics.weight = SAMPLE_MASK, SAMPLE_MASK + 1
    for _ in range(1000):
        if waits:
            timed.receive(b"later")
            timed.complete(b"later", b"x")
        else:
            timed.receive(b"a")
    found = sum(timed.info.metrics.total.buckets)
    assert found % (SAMPLE_MASK + 1) == 0
    assert found < 1000 * (SAMPLE_MASK + 1)


def test_a_part_of_a_frame_and_a_late_response_are_activity(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_ms: list[int] = []
    monkeypatch.setattr(time, "monotonic_ns", lambda: times_ms[-1] * 1_000_000)

    def active_after(now_ms: int, act: Callable[..., None], *arguments: bytes) -> bool:
        times_ms.append(now_ms)
        act(*arguments)
        return harness.connection.last_active_mono_ms == now_ms

    assert active_after(1, harness.receive_bytes, b"\0\0")
    assert active_after(2, harness.receive_bytes, b"\0\5l")
    assert active_after(3, harness.receive_bytes, b"ater")
    assert active_after(4, harness.complete, b"later", b"later;")
