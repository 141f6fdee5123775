"""Requests of clients with quotas: what counts, and how long the connection is muted (broker/handlers/throttling.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import FastPath, Route, Router
from broker.handlers.throttling import Throttling
from broker.network.exchange import ConnectionInfo
from protocol.api import ApiKey, response_header_version
from protocol.codec import decode
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from protocol.messages.produce_fetch import ProduceRequest, ProduceResponse
from protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from protocol.schema import Message
from replication.completion import Completion
from replication.metadata.image import MetadataImage
from replication.quota_rates import QuotaWindows
from tests.support.quotas import NoThreads
from tests.unit.broker.handlers.test_request_dispatcher import frame_of

PERCENT, PRODUCED = "request_percentage", "producer_byte_rate"
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
OK = HeartbeatResponse(error_code=0)


class Harness:
    """A dispatcher with a clock; handlers take `spend_ms`."""

    def __init__(self, **quotas: float) -> None:
        self.now_ns = 10**12
        self.threads = NoThreads()
        self.spend_ms = 0.0
        self.muted: list[int] = []
        self.fast_paths = 0
        self.connection = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
        self.connection.mute = self.muted.append
        self.throttling = Throttling(QuotaWindows(), self.threads, lambda: self.now_ns)
        self.dispatcher = Dispatcher()
        self.set_quotas(**quotas)

    def set_quotas(self, **quotas: float) -> None:
        """The quotas of the client id "c", which all requests have."""
        image = MetadataImage("cluster", quotas={(("client-id", "c"),): quotas})
        self.dispatcher.throttling = self.throttling.updated(image)

    def serve(self, key: int, version: int, answer: Any) -> None:
        def handler(context: Any, request: Any) -> Any:
            self.now_ns += int(self.spend_ms * 1e6)
            return answer

        def fast_path(version: int) -> FastPath:
            def answer_fast(context: Any, frame: Any, position: int) -> None:
                self.fast_paths += 1

            return answer_fast

        self.dispatcher.serve(Router([Route(key, version, version, handler, fast_path=fast_path)]))

    def ask(self, request: Message, version: int) -> Any:
        """The decoded response, the completion of one, or None."""
        mono_ms = self.now_ns // 1_000_000
        parts = self.dispatcher.dispatch(frame_of(request, version), self.connection, mono_ms)
        if isinstance(parts, Completion) or parts is None:
            return parts
        key = request.API_KEY
        frame = b"".join(parts)  # type: ignore[arg-type]
        response: Any = {0: ProduceResponse, 12: HeartbeatResponse, 27: WriteTxnMarkersResponse}[key]
        return decode(response, version, frame[8 + response_header_version(key, version) :])


def test_without_quotas_nothing_is_measured() -> None:
    harness = Harness()
    assert harness.dispatcher.throttling is None
    harness.serve(ApiKey.HEARTBEAT, 4, OK)
    assert harness.ask(BEAT, 4).throttle_time_ms == 0
    assert harness.fast_paths == 1


def test_the_time_of_requests_is_a_percentage_of_one_loop() -> None:
    harness = Harness(**{PERCENT: 5.0})
    harness.serve(ApiKey.HEARTBEAT, 4, OK)
    harness.spend_ms = 500  # 5 % of ten seconds
    assert harness.ask(BEAT, 4).throttle_time_ms == 0
    harness.spend_ms = 20
    assert harness.ask(BEAT, 4).throttle_time_ms in range(380, 400)  # 0.52 s at 5 % are 10.4 s
    assert harness.muted[0] in range(380, 400)
    harness.spend_ms = 500
    assert harness.ask(BEAT, 4).throttle_time_ms == 1000  # at most one window
    assert OK.throttle_time_ms == 0  # the handler's message is not changed
    assert harness.fast_paths == 0


def test_a_late_response_is_charged_when_it_is_complete() -> None:
    harness = Harness(**{PERCENT: 1.0})
    late: Completion[Message] = Completion()
    harness.serve(ApiKey.HEARTBEAT, 4, late)
    harness.spend_ms = 200
    response = harness.ask(BEAT, 4)
    assert not harness.muted
    harness.now_ns += 10**10  # waiting is free
    late.complete(OK)
    assert harness.muted == [1000]
    assert response.is_done


def test_the_longer_of_the_controllers_time_and_its_own_is_answered() -> None:
    harness = Harness(**{PERCENT: 1.0})
    harness.serve(ApiKey.HEARTBEAT, 4, HeartbeatResponse(error_code=0, throttle_time_ms=3000))
    harness.spend_ms = 500
    assert harness.ask(BEAT, 4).throttle_time_ms == 3000
    assert harness.muted == [3000]


def test_a_produce_counts_by_the_size_of_its_frame() -> None:
    request = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1, topic_data=[])
    size = len(frame_of(request, 9))
    harness = Harness(**{PRODUCED: size / 10})
    harness.serve(ApiKey.PRODUCE, 9, ProduceResponse(responses=[]))
    assert harness.ask(request, 9).throttle_time_ms == 0
    assert harness.ask(request, 9).throttle_time_ms == 10_000


def test_with_acks_0_bytes_mute_the_connection_and_time_does_not_count() -> None:
    request = ProduceRequest(transactional_id=None, acks=0, timeout_ms=1, topic_data=[])
    size = len(frame_of(request, 9))
    harness = Harness(**{PRODUCED: size / 10, PERCENT: 0.001})
    harness.serve(ApiKey.PRODUCE, 9, None)
    harness.spend_ms = 100
    assert (harness.ask(request, 9), harness.muted) == (None, [])
    assert (harness.ask(request, 9), harness.muted) == (None, [9900])


def test_requests_between_brokers_are_exempt() -> None:
    harness = Harness(**{PERCENT: 0.001})
    harness.serve(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersResponse(markers=[]))
    harness.spend_ms = 100
    harness.ask(WriteTxnMarkersRequest(markers=[]), 1)
    assert not harness.muted


@pytest.mark.parametrize("after", [{PERCENT: 100.0}, {}, {PRODUCED: 1.0}])
def test_changed_quotas_count_from_the_next_request_on(after: dict[str, float]) -> None:
    harness = Harness(**{PERCENT: 1.0})
    harness.serve(ApiKey.HEARTBEAT, 4, OK)
    harness.spend_ms = 500
    assert harness.ask(BEAT, 4).throttle_time_ms == 1000
    harness.set_quotas(**after)
    assert harness.ask(BEAT, 4).throttle_time_ms == 0
    harness.set_quotas(**{PERCENT: 1.0})
    assert harness.ask(BEAT, 4).throttle_time_ms == 1000  # what was used before is remembered


def test_the_time_of_threads_counts_and_that_of_other_requests_does_not() -> None:
    harness = Harness(**{PERCENT: 1.0})
    late: Completion[Message] = Completion()
    jobs: list[Callable[[], None]] = []

    def work() -> None:
        harness.now_ns += 150_000_000

    def handler(context: Any, request: Any) -> Any:
        assert harness.threads.metered is not None
        jobs.append(harness.threads.metered(work))
        harness.threads.metered(work)()  # on the loop it counts once
        return late

    harness.dispatcher.serve(Router([Route(ApiKey.HEARTBEAT, 4, 4, handler)]))
    harness.ask(BEAT, 4)
    assert harness.threads.metered is None
    thread = threading.Thread(target=jobs[0])
    thread.start()
    thread.join()
    harness.dispatcher.throttling = harness.throttling
    harness.connection.mute = harness.muted.append
    late.complete(OK)
    assert harness.muted == [1000]
    ((_, sensor),) = harness.throttling.quotas.sensors()
    assert round(sensor.rate.measure(harness.now_ns // 10**6), 3) == 3.0  # 0.15 s on the loop, 0.15 s in a thread
