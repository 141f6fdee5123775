"""Load on many partitions through a fetch session, as of a consumer of a wide topic.

The first request of a session has every partition; later requests have only those whose position changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct

from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.raw import FETCH_VERSION, PRODUCE_VERSION, Peer, batch, frame, time_to_wake
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.loading import append_request, end_offsets, fetch_request
from tests.support.raw_client import RawClient

_MAX_BYTES = 50 << 20
_PARKED_MS = 5000
_SESSION_ID = Struct(">i")
_SESSION_ID_AT = 14  # after length, correlation id, throttle time and error code
_NO_ID = bytes(16)


class Session:
    """A fetch session over the first partitions of a topic, with its connection."""

    def __init__(self, broker: RunningBroker, topic: str, positions: Mapping[int, int], partition_bytes: int) -> None:
        self._topic = topic
        self._partition_bytes = partition_bytes
        self.peer = Peer(broker.bootstrap)
        self._id, self._epoch = 0, 0
        self.peer.call(self.request(positions, max_bytes=1))
        (self._id,) = _SESSION_ID.unpack_from(self.peer.buffer, _SESSION_ID_AT)
        assert self._id, "no session was made"

    def request(self, positions: Mapping[int, int], max_wait_ms: int = 0, max_bytes: int = _MAX_BYTES) -> bytes:
        """The next request, with the positions that changed."""
        topic_partitions = {(self._topic, _NO_ID, index): offset for index, offset in positions.items()}
        session = {"session_id": self._id, "session_epoch": self._epoch}
        partition = {"partition_max_bytes": self._partition_bytes}
        request = fetch_request(
            FETCH_VERSION,
            topic_partitions,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            partition=partition,
            **session,
        )
        self._epoch += 1
        return frame(request, FETCH_VERSION)


def fetch(broker: RunningBroker, topic: str, partitions: int, records: int, total_bytes: int) -> Outcome:
    """Every partition's first batch, then its second, repeatedly; one request in flight.

    Every request has all positions, since all have changed, and a response has a batch of each, except of those that are
    not in the page cache. The bytes of batches are counted.
    """
    size = len(batch(records, 1024))
    # Every partition starts with the record of `touch`.
    turns = [dict.fromkeys(range(partitions), 1 + turn * records) for turn in range(2)]
    session = Session(broker, topic, turns[1], size)
    count = max(4, total_bytes // (partitions * size))
    requests = [session.request(turns[number % 2]) for number in range(count)]
    received = 0
    with Meter(broker.pid) as meter:
        for request in requests:
            session.peer.send(request)
            received += min(session.peer.discard(), partitions * size)
    session.peer.close()
    assert received > count * partitions * size * 0.9, f"{received} bytes of {count} times {partitions} partitions"
    return meter.throughput(received)


def wake(broker: RunningBroker, topic: str, partitions: int, count: int) -> Outcome:
    """A parked Fetch over all partitions is answered after a Produce to one of them, each in turn."""
    with RawClient(broker.bootstrap) as client:
        offsets = dict(enumerate(end_offsets(client, topic, partitions)))
    record = batch(1, 100)
    session = Session(broker, topic, offsets, 1 << 20)

    def requests() -> Iterator[tuple[bytes, bytes]]:
        moved: dict[int, int] = {}
        for number in range(count):
            index = number % partitions
            produce = frame(append_request(topic, index, record), PRODUCE_VERSION)
            yield session.request(moved, _PARKED_MS), produce
            offsets[index] += 1
            moved = {index: offsets[index]}

    return time_to_wake(broker, session.peer, requests())
