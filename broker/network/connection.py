"""One client connection: reads frames, dispatches requests, sends responses in order.

RULES    1. Requests start, and responses are sent, in the order of the frames. One request is in flight, up to the end of its
            sending. Behind an incomplete response, a few requests of the same API may start if it allows that
            (`Dispatcher.can_pipeline`).
         2. The socket is watched for writing only while bytes are unsent, and for reading only while the queue is short.
         3. A request with an immediate response is answered in the same callback, without a task or a future.
         4. A peer that violates the protocol costs one log line and its connection.
         5. If the records of a response are not in the page cache, the connection waits for a reader thread and watches
            nothing; the event loop does not block (page_cache_prefetch.py).
         6. Small responses that are complete at the same time are sent in one system call.
         7. After a receive that led to no send, the connection receives once more: libuv reports a reset that arrives
            together with data only once, as readable. Without the second receive the descriptor would leak, or be open as long
            as a request waits in front of that data. Requests that may be pipelined complete within their timeout: sending
            finds the reset, or the receive after one without a response.
         8. Other connections are served between `_REQUESTS_PER_TURN` queued requests.
         9. A muted connection is not read, and starts no queued request. Responses still leave (KIP-219).
        10. The times of a request, if it is timed, are recorded when the socket has the last byte of its response; those of one
            that closes the connection are not.
        11. At the end of the peer's stream, requests are served and answered before the connection is closed: a producer that
            waits for no response closes its connection behind its last records, and other clients may have closed their side
            only. The last request is cancelled if it waits for other clients, such as a Fetch for records.
NOT HERE Accepting (`listener.py`), the meaning of a request (`handlers/`), sending parts (`sender.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.network.closing_log import log_closing
from broker.network.exchange import CloseConnection, ConnectionInfo, Dispatcher, Response, no_mute
from broker.network.page_cache_prefetch import PageCachePrefetcher, ReadAhead
from broker.network.sender import RegionEnded, Sender
from broker.network.slow_requests import log_slow_request
from broker.network.socket_io import PlaintextTransportLayer
from broker.telemetry.request_metrics import RequestTimes
from protocol.errors import MalformedRequest
from protocol.framing import FrameReader, Part
from replication.completion import Completion, completed, failed

_log = logging.getLogger("barnabas.network")

_MAX_QUEUED_FRAMES = 8
_MAX_QUEUED_BYTES = 1024 * 1024
"""Frames and bytes that may be queued behind a request in flight; above that the socket is not read."""
_REQUESTS_PER_TURN = 64
"""Queued requests that start in one iteration of the event loop: thousands can arrive together."""
_MAX_IN_FLIGHT = 64
_MAX_IN_FLIGHT_BYTES = 1024 * 1024
"""The most requests, and bytes of requests, of one connection that are in flight."""
_API_KEY_BYTES: Final = 2  # a frame begins with the API key
_new_tuple = tuple.__new__


class _InFlightRequest(NamedTuple):
    """A request whose response is incomplete, or behind an incomplete one; an error closes the connection in its place."""

    response: Response
    api_key: bytearray
    size: int
    times: RequestTimes | None
    """None: it is not timed."""


class Connection:
    """One accepted socket; all its code runs in callbacks of the event loop."""

    __slots__ = (
        "_arrivals_ns",
        "_completed_ns",
        "_dispatcher",
        "_has_ended",
        "_has_unsent",
        "_in_flight",
        "_in_flight_bytes",
        "_is_prefetching",
        "_is_reading",
        "_is_receive_scheduled",
        "_is_send_scheduled",
        "_is_writing",
        "_loop",
        "_muted_until_s",
        "_on_close",
        "_queued_frames",
        "_read_ahead",
        "_reader",
        "_sender",
        "_transport",
        "_unmute_timer",
        "_unsent_times",
        "info",
        "is_closed",
        "last_active_mono_ms",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: PlaintextTransportLayer,
        info: ConnectionInfo,
        dispatcher: Dispatcher,
        reader: FrameReader,
        on_close: Callable[[Connection], None],
        prefetcher: PageCachePrefetcher | None = None,
        is_loop_shared: Callable[[int], bool] | None = None,
    ) -> None:
        """`is_loop_shared`: as in `Sender`."""
        self._loop = loop
        self._transport = transport
        self.info = info
        self._dispatcher = dispatcher
        self._reader = reader
        self._on_close = on_close
        self._read_ahead = None if prefetcher is None else ReadAhead(prefetcher)
        self._sender = Sender(transport, self._read_ahead, is_loop_shared=is_loop_shared)
        self._queued_frames: deque[bytearray] = deque()
        self._arrivals_ns: deque[int] = deque()  # of the queued frames
        self._completed_ns = 0  # when the responses that `_send_complete` sends were complete; 0: now
        self._unsent_times: list[RequestTimes] = []  # of the responses that are not sent completely
        self._in_flight: deque[_InFlightRequest] = deque()
        self._in_flight_bytes = 0
        self._has_ended = False  # the peer sends no more, and requests are queued or in flight (rule 11)
        self._has_unsent = False
        self._is_send_scheduled = False
        self._is_reading = False
        self._is_writing = False
        self._is_prefetching = False
        self._is_receive_scheduled = False
        self._unmute_timer: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0  # of the loop's clock
        self.is_closed = False
        info.mute = self._mute
        self.last_active_mono_ms = time.monotonic_ns() // 1_000_000

    @property
    def queued_requests(self) -> int:
        """Requests that are received and not begun."""
        return len(self._queued_frames)

    @property
    def has_unsent(self) -> bool:
        """Whether a part of a response waits for the socket."""
        return self._has_unsent

    def start(self) -> None:
        """Starts to read."""
        self._watch_reading(wanted=True)

    def close(self) -> None:
        """Closes the connection and cancels the requests in flight."""
        if self.is_closed:
            return
        self.is_closed = True
        self._watch_reading(wanted=False)
        self._watch_writing(wanted=False)
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        if self._sender.is_idle:
            self._transport.close()
        else:  # an incomplete response is useless, and the kernel would keep it for a peer that does not read
            self._transport.reset()
        self.info.mute = (
            no_mute  # else the info refers to the connection, which would keep its buffers until a full collection
        )
        self._reader.release()
        self._queued_frames.clear()
        self._arrivals_ns.clear()
        in_flight, self._in_flight = self._in_flight, deque()
        for request in in_flight:
            request.response.cancel()
        if self.info.on_close is not None:
            self.info.on_close()
        self._on_close(self)

    # ------------------------------------------------------------ reading
    def _on_readable(self) -> None:
        try:
            count = self._transport.receive(self._reader.space())
            if count is None:
                return
            if count == 0:
                self._on_end()
                return
            frames = self._reader.received(count)
        except MalformedRequest as error:
            self._close_with_reason(str(error))
            return
        except OSError:  # reset by the peer: the usual end of a client that was killed
            self.close()
            return
        if not frames:
            self.last_active_mono_ms = time.monotonic_ns() // 1_000_000
            self.receive_soon()
            return
        if len(frames) == 1 and not self._queued_frames and self._may_start(frames[0]):
            self._serve(frames[0], 0)
            return
        self._queued_frames.extend(frames)
        self._arrivals_ns.extend([time.monotonic_ns()] * len(frames))
        self._serve_queued()
        if self._queued_frames:
            self.receive_soon()

    def _on_end(self) -> None:
        """The peer sends no more (rule 11)."""
        self._has_ended = True
        self._watch_reading(wanted=False)
        self._close_if_ended()

    def _close_if_ended(self) -> None:
        """Closes the connection if the peer sends no more, and has all responses but one that waits for other clients."""
        if self._has_ended and not (self._has_unsent or self._queued_frames):
            in_flight = self._in_flight
            if not in_flight or self._dispatcher.waits_for_clients(in_flight[0].api_key):
                self.close()

    def receive_soon(self) -> None:
        """Receives in the next iteration of the loop (rule 7), or because TLS has bytes that the socket does not announce."""
        if not self._is_receive_scheduled:
            self._is_receive_scheduled = True
            self._loop.call_soon(self._receive_scheduled)

    def _receive_scheduled(self) -> None:
        self._is_receive_scheduled = False
        if self._is_reading:
            self._on_readable()

    def _serve_queued(self) -> None:
        frames, sender = self._queued_frames, self._sender
        left = _REQUESTS_PER_TURN
        while left and frames and not self.is_closed and self._may_start(frames[0]):
            left -= 1
            sender.is_holding = left > 0 and len(frames) > 1
            self._serve(frames.popleft(), self._arrivals_ns.popleft())
        if not left and frames:
            self._loop.call_soon(self._serve_queued)
        sender.is_holding = False
        self._flush_held()
        if self._has_ended:
            self._close_if_ended()
        elif not self.is_closed and self._unmute_timer is None:
            waiting_bytes = sum(map(len, frames))
            self._watch_reading(wanted=len(frames) < _MAX_QUEUED_FRAMES and waiting_bytes < _MAX_QUEUED_BYTES)

    def _may_start(self, frame: bytearray) -> bool:
        if self._has_unsent or self._unmute_timer is not None:
            return False
        in_flight = self._in_flight
        if not in_flight:
            return True
        return (
            len(in_flight) < _MAX_IN_FLIGHT
            and frame.startswith(in_flight[0].api_key)
            and self._dispatcher.can_pipeline(frame)
            and in_flight[-1].response.error is None
            and self._in_flight_bytes + len(frame) <= _MAX_IN_FLIGHT_BYTES
        )

    def _serve(self, frame: bytearray, arrived_ns: int) -> None:
        """Starts a request; `arrived_ns` is 0 if it was not queued."""
        began_ns = time.monotonic_ns()
        now_ms = began_ns // 1_000_000
        self.last_active_mono_ms = now_ms
        answer: list[Part] | Response | None
        try:
            answer = self._dispatcher.dispatch(frame, self.info, now_ms)
        except (MalformedRequest, CloseConnection) as error:
            if not self._in_flight:
                self._fail(error)
                return
            answer = failed(error.with_traceback(None))
        metrics = self.info.metrics
        is_timed = not began_ns & metrics.sample_mask
        handled_ns = time.monotonic_ns() if is_timed else began_ns
        if answer is None:
            if is_timed:
                metrics.record_immediate(began_ns, handled_ns, handled_ns)
            self.receive_soon()
        elif isinstance(answer, list) and not self._in_flight:
            self._send(answer)
            if is_timed or self._has_unsent:
                self._record_sent(RequestTimes(metrics, frame, arrived_ns or began_ns, began_ns, handled_ns))
        else:
            response: Response = completed(answer) if isinstance(answer, list) else answer
            times: RequestTimes | None = None
            if is_timed:
                times = RequestTimes(metrics, frame, arrived_ns or began_ns, began_ns, handled_ns)
                times.weight = metrics.weight
            size = len(frame)
            self._in_flight.append(_new_tuple(_InFlightRequest, (response, frame[:_API_KEY_BYTES], size, times)))
            self._in_flight_bytes += size
            response.then(self._on_response)
            if not response.is_done and len(self._in_flight) == 1 and not self._dispatcher.can_pipeline(frame):
                self.receive_soon()

    def _record_sent(self, times: RequestTimes) -> None:
        """Records the times of a request that was answered at once."""
        metrics = times.metrics
        if self._has_unsent:
            self._unsent_times.append(times)
        elif times.arrived_ns != times.began_ns:  # it was queued
            times.weight = metrics.weight
            self._record(times)
        else:
            now_ns = time.monotonic_ns()
            if metrics.record_immediate(times.began_ns, times.handled_ns, now_ns):
                log_slow_request(self.info, times, now_ns)

    def _on_response(self, response: Response) -> None:
        """The response to a request in flight is complete."""
        in_flight = self._in_flight
        if self.is_closed or response is not in_flight[0].response:
            return
        if len(in_flight) == 1:
            self._send_complete()
        elif not self._is_send_scheduled:  # others may complete in this iteration of the loop (rule 6)
            self._is_send_scheduled = True
            self._completed_ns = time.monotonic_ns()
            self._loop.call_soon(self._send_complete)

    def _send_complete(self) -> None:
        """Sends the complete responses, up to the first incomplete one."""
        self._is_send_scheduled = False
        in_flight, sender = self._in_flight, self._sender
        now_ns = time.monotonic_ns()
        self.last_active_mono_ms = now_ns // 1_000_000
        completed_ns, self._completed_ns = self._completed_ns or now_ns, 0
        while in_flight and in_flight[0].response.is_done and not self.is_closed:
            response, _, size, times = in_flight.popleft()
            self._in_flight_bytes -= size
            sender.is_holding = bool(in_flight) and in_flight[0].response.is_done
            if response.error is not None:
                self._fail(response.error)
                continue
            if response.value is None:
                self.receive_soon()
            else:
                self._send(response.value)
            if times is not None:
                times.completed_ns = max(completed_ns, times.handled_ns)
                times.sending_ns = max(now_ns, times.handled_ns)
                now_ns = self._record(times)
        sender.is_holding = False
        self._flush_held()
        if self._queued_frames and not self.is_closed:
            self._loop.call_soon(self._serve_queued)
        self._close_if_ended()

    def _fail(self, error: Exception) -> None:
        """Closes the connection after an error of a request; raises any error that is not the client's."""
        if not isinstance(error, MalformedRequest | CloseConnection):
            raise error
        if isinstance(error, CloseConnection) and error.last_response is not None:
            self._send(error.last_response)
        self._close_with_reason(str(error))

    # ------------------------------------------------------------ writing
    def _flush_held(self) -> None:
        """Sends the responses that the sender held back for a following one."""
        if not (self.is_closed or self._is_writing or self._is_prefetching or self._sender.is_idle):
            self._send([])

    def _send(self, parts: list[Part]) -> None:
        try:
            done = self._sender.send(parts)
        except (OSError, RegionEnded) as error:
            if isinstance(error, RegionEnded):
                _log.warning("closing %s: %s", self._peer(), error)
            self.close()
            return
        self._has_unsent = not done
        if not done:
            self._wait_until_sendable()
            return
        if self._is_writing:
            self._watch_writing(wanted=False)
        if self._unsent_times:
            sent, self._unsent_times = self._unsent_times, []
            for times in sent:
                self._record(times)

    def _record(self, times: RequestTimes) -> int:
        """Records the times of a request if its response is sent, else when it is; returns the time."""
        now_ns = time.monotonic_ns()
        if self._has_unsent:
            self._unsent_times.append(times)
        elif times.metrics.record(times, now_ns):
            log_slow_request(self.info, times, now_ns)
        return now_ns

    def _on_writable(self) -> None:
        self.last_active_mono_ms = time.monotonic_ns() // 1_000_000
        self._send([])
        if not self._has_unsent:
            self._serve_queued()

    def _wait_until_sendable(self) -> None:
        """Continues when the socket has room, or when the uncached region is read."""
        uncached = self._sender.uncached
        self._watch_writing(wanted=uncached is None)
        if uncached is not None and not self._is_prefetching:
            assert self._read_ahead is not None
            self._is_prefetching = True
            self._read_ahead.prefetch(uncached).then(self._on_prefetched)

    def _on_prefetched(self, prefetched: Completion[bytes | None]) -> None:
        """The uncached region is read (on the loop)."""
        self._is_prefetching = False
        if self.is_closed:
            return
        error = prefetched.error
        if error is None:
            try:
                self._sender.resume_after_prefetch(prefetched.value)
            except RegionEnded as ended:
                error = ended
        if error is not None:
            _log.warning("closing %s: %s", self._peer(), error)
            self.close()
            return
        self._on_writable()

    # ------------------------------------------------------------ muting
    def _mute(self, duration_ms: int) -> None:
        """Serves no further request for a time, or longer if it is muted for longer already."""
        until_s = self._loop.time() + duration_ms / 1000
        if self.is_closed or until_s <= self._muted_until_s:
            return
        self.info.metrics.throttle.record(duration_ms * 1_000_000)
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        self._muted_until_s = until_s
        self._unmute_timer = self._loop.call_at(until_s, self._unmute)
        self._watch_reading(wanted=False)

    def _unmute(self) -> None:
        self._unmute_timer = None
        self._serve_queued()

    # ------------------------------------------------------------ watching
    def _watch_reading(self, *, wanted: bool) -> None:
        if wanted is self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._loop.add_reader(self._transport.fileno(), self._on_readable)
            if self._transport.has_buffered:
                self.receive_soon()
        else:
            self._loop.remove_reader(self._transport.fileno())

    def _watch_writing(self, *, wanted: bool) -> None:
        if wanted is self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._transport.fileno(), self._on_writable)
        else:
            self._loop.remove_writer(self._transport.fileno())

    def _close_with_reason(self, close_reason: str) -> None:
        log_closing(self.info.peer_host, self.info.peer_port, close_reason)
        self._flush_held()
        self.close()

    def _peer(self) -> str:
        return f"{self.info.peer_host}:{self.info.peer_port}"
