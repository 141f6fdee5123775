"""Load over raw sockets: encoded in advance, responses read but not decoded, so that the client costs little.

Versions are those that all clients of recent years use: Produce 7, Fetch 11, without a session.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from struct import Struct
from typing import Any

from protocol.api import request_header_version
from protocol.batch_builder import BatchBuilder
from protocol.codec import encode
from protocol.messages.admin import CreateTopicsRequest, DeleteTopicsRequest
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import ProduceRequest
from protocol.schema import Message
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import RunningBroker, evict_records
from tests.support.loading import end_offset, end_offsets, fetch_request, produce_request
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PRODUCE_VERSION = 7
FETCH_VERSION = 11
_API_VERSIONS_VERSION = 0
_LENGTH = Struct(">i")
_DISCARD = 0x20  # MSG_TRUNC of Linux's TCP: bytes are thrown away inside the kernel
_BUFFER_BYTES = 1 << 20
_OFFSETS = 12
_IN_FLIGHT = 5
_TOPIC_ID = bytes(16)


def frame(request: Message, version: int, correlation_id: int = 7) -> bytes:
    """A request as sent over the wire."""
    key = type(request).API_KEY
    assert key is not None
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id="bench"
    )
    body = encode(header, request_header_version(key, version)) + encode(request, version)
    return _LENGTH.pack(len(body)) + body


def batch(records: int, value_bytes: int, ahead_ms: int = 0) -> bytes:
    """A batch of records of random bytes, with this time or a later one."""
    builder = BatchBuilder()
    value, time_ms = os.urandom(value_bytes), time.time_ns() // 1_000_000 + ahead_ms
    for _ in range(records):
        builder.append(time_ms, None, value)
    return bytes(builder.build())


def produce_frame(topic: str, records: bytes, acks: int = 1, partitions: int = 1) -> bytes:
    """A Produce of one batch to each of the first partitions."""
    return frame(produce_request({topic: [records] * partitions}, acks=acks), PRODUCE_VERSION)


def fetch_frame(topic: str, offset: int, max_bytes: int, max_wait_ms: int) -> bytes:
    positions = {(topic, _TOPIC_ID, 0): offset}
    return frame(fetch_request(FETCH_VERSION, positions, max_bytes=max_bytes, max_wait_ms=max_wait_ms), FETCH_VERSION)


class Peer:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        """Filled by `answer`."""
        self.send = self._socket.sendall
        self.fileno = self._socket.fileno

    def answer(self) -> int:
        """Reads the only outstanding response into the buffer; its length."""
        receive, buffer = self._socket.recv_into, self.buffer
        filled = 0
        while filled < 4 or filled < 4 + _LENGTH.unpack_from(buffer)[0]:
            filled += receive(buffer[filled:]) or self._hung_up()
        return filled

    def answers(self) -> int:
        """Reads available bytes of responses of equal size; their number."""
        return self._socket.recv_into(self.buffer) or self._hung_up()

    def discard(self) -> int:
        """Discards the only outstanding response; its size."""
        self._receive_length()
        size: int = _LENGTH.unpack_from(self.buffer)[0]
        left, skip = size, self._skip
        while left:
            left -= skip(left) or self._hung_up()
        return size

    def _receive_length(self) -> None:
        """Reads the length of a response into the buffer."""
        self._socket.recv_into(self.buffer[:4], 4, socket.MSG_WAITALL)

    def _skip(self, count: int) -> int:
        """Discards at most this number of bytes; 0 at the end of the stream."""
        return self._socket.recv_into(self.buffer, min(count, _BUFFER_BYTES), _DISCARD)

    def call(self, request: bytes) -> None:
        self.send(request)
        self.answer()

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def _hung_up() -> int:
        raise EOFError("the broker hung up")


def create_topic(
    client: RawClient, name: str, partitions: int = 1, replicas: tuple[int, ...] = (), **configs: object
) -> None:
    """Creates a topic whose files are removed soon after its deletion, and waits until every partition accepts records.

    `replicas` are those of every partition, the leader first, which gets the request; without them there is one broker.
    """
    topic: dict[str, Any] = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    if replicas:
        assigned = [{"partition_index": index, "broker_ids": list(replicas)} for index in range(partitions)]
        topic |= {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}
    settings = {"file.delete.delay.ms": 1000, **configs}
    topic["configs"] = [{"name": key, "value": str(value)} for key, value in settings.items()]
    answer = client.ask(message(CreateTopicsRequest, topics=[topic], timeout_ms=30_000), 5)
    assert answer.topics[0].error_code == 0, answer
    touch(client, name, partitions)


def touch(client: RawClient, topic: str, partitions: int) -> None:
    """Appends one record to every partition, as soon as it has a leader."""
    missing = set(range(partitions))

    def try_the_missing() -> bool:
        missing.difference_update(write(client, topic, missing))
        return not missing

    until(try_the_missing, f"every partition of {topic} takes a record", within_s=120)


def write(client: RawClient, topic: str, partitions: Iterable[int], acks: int = 1) -> set[int]:
    """A record to each of some partitions; returns those that accepted it."""
    record = memoryview(batch(1, 100))
    data = {"name": topic, "partition_data": [{"index": index, "records": record} for index in sorted(partitions)]}
    answer = client.ask(message(ProduceRequest, acks=acks, timeout_ms=30_000, topic_data=[data]), PRODUCE_VERSION)
    return {part.index for part in answer.responses[0].partition_responses if part.error_code == 0}


def delete_topic(client: RawClient, name: str) -> None:
    answer: Any = client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
    assert answer.responses[0].error_code == 0, answer


def fill(bootstrap: str, topic: str, batch_bytes: int, total_bytes: int, partitions: int = 1) -> None:
    """Appends batches of records of 1 KiB to the partitions in turn until the topic has this size."""
    times = total_bytes // (batch_bytes * partitions)
    append(bootstrap, topic, batch(batch_bytes // 1024, 1024), partitions, times)


def append(bootstrap: str, topic: str, records: bytes, partitions: int, times: int = 1) -> None:
    """Appends a batch to each of the partitions, several times."""
    request = produce_frame(topic, records, partitions=partitions)
    peer = Peer(bootstrap)
    for _ in range(times):
        peer.call(request)
    peer.close()


# ---------------------------------------------------------------- loads
def api_versions(broker: RunningBroker, count: int) -> Outcome:
    return _sequential(broker, count, frame(ApiVersionsRequest(), _API_VERSIONS_VERSION))


def produce_one(broker: RunningBroker, count: int, topic: str, acks: int = 1) -> Outcome:
    """Produce of one record of 100 bytes, in sequence."""
    return _sequential(broker, count, produce_frame(topic, batch(1, 100), acks))


def fetch_at_end(broker: RunningBroker, count: int, topic: str) -> Outcome:
    """Fetch at the log end, without waiting."""
    with RawClient(broker.bootstrap) as client:
        offset = end_offset(client, topic)
    return _sequential(broker, count, fetch_frame(topic, offset, _BUFFER_BYTES, 0))


def _sequential(broker: RunningBroker, count: int, request: bytes) -> Outcome:
    peer = Peer(broker.bootstrap)
    clock = time.perf_counter
    for _ in range(count // 10):
        peer.call(request)
    elapsed = []
    with Meter(*broker.pids) as meter:
        for _ in range(count):
            started = clock()
            peer.call(request)
            elapsed.append(clock() - started)
    peer.close()
    return meter.each(elapsed)


def wake(broker: RunningBroker, count: int, topic: str) -> Outcome:
    """A parked Fetch is answered after a Produce over another connection: the time between that request and this response."""
    with RawClient(broker.bootstrap) as client:
        offset = end_offset(client, topic)
    request = produce_frame(topic, batch(1, 100))
    fetches = (fetch_frame(topic, offset + number, _BUFFER_BYTES, 5000) for number in range(count))
    return time_to_wake(broker, Peer(broker.bootstrap), ((fetch, request) for fetch in fetches))


def time_to_wake(broker: RunningBroker, consumer: Peer, requests: Iterable[tuple[bytes, bytes]]) -> Outcome:
    """The times between each Produce and the response to the parked Fetch before it."""
    producer = Peer(broker.bootstrap)
    clock = time.perf_counter
    elapsed = []
    with Meter(broker.pid) as meter:
        for fetch, produce in requests:
            consumer.send(fetch)
            time.sleep(0.001)  # time to be parked
            started = clock()
            producer.send(produce)
            consumer.answer()
            elapsed.append(clock() - started)
            producer.answer()
    producer.close()
    consumer.close()
    return meter.each(elapsed)


def produce(
    broker: RunningBroker,
    topic: str,
    batch_bytes: int,
    total_bytes: int,
    partitions: int = 1,
    acks: int = 1,
    peer: Peer | None = None,
) -> Outcome:
    """The same request repeatedly over one connection, a few in flight: a batch for each partition."""
    records = max(1, batch_bytes // 1024)
    request = produce_frame(topic, batch(records, 1024), acks, partitions)
    peer = peer or Peer(broker.bootstrap)
    peer.send(request)
    answer_bytes = peer.answer()
    with RawClient(broker.bootstrap) as client:
        before = sum(end_offsets(client, topic, partitions))
    count = max(_IN_FLIGHT, total_bytes // (records * 1024 * partitions))
    sent = received = unread = 0
    with Meter(*broker.pids) as meter:
        while received < count:
            while sent < count and sent - received < _IN_FLIGHT:
                peer.send(request)
                sent += 1
            unread += peer.answers()
            received += unread // answer_bytes
            unread %= answer_bytes
    peer.close()
    with RawClient(broker.bootstrap) as client:
        assert sum(end_offsets(client, topic, partitions)) - before == count * records * partitions, "refused"
    return meter.throughput(count * records * 1024 * partitions)


def fetch(broker: RunningBroker, topic: str, max_bytes: int, total_bytes: int, peer: Peer | None = None) -> Outcome:
    """Twelve offsets of a partition in turn over one connection, one request in flight; the bytes are discarded."""
    with RawClient(broker.bootstrap) as client:
        end = end_offset(client, topic)
    requests = [fetch_frame(topic, end * partition // 16, max_bytes, 500) for partition in range(_OFFSETS)]
    peer = peer or Peer(broker.bootstrap)
    for request in requests:
        peer.send(request)
        peer.discard()
    turn = received = 0
    with Meter(broker.pid) as meter:
        while received < total_bytes:
            peer.send(requests[turn % _OFFSETS])
            received += peer.discard()
            turn += 1
    peer.close()
    return meter.throughput(received)


def scan(broker: RunningBroker, topic: str, batch_bytes: int, max_bytes: int, total_bytes: int) -> Outcome:
    """The partition from its start, which `fill` has filled with these batches, from the disk; one request in flight."""
    evict_records(broker)
    with RawClient(broker.bootstrap) as client:
        end = end_offset(client, topic)
    whole_batches = max_bytes // (batch_bytes + batch_bytes // 64)  # with the overhead of records and batch
    peer = Peer(broker.bootstrap)
    offset = received = 0
    with Meter(broker.pid) as meter:
        while offset < end and received < total_bytes:
            peer.send(fetch_frame(topic, offset, max_bytes, 500))
            received += peer.discard()
            offset += whole_batches * (batch_bytes // 1024)
    peer.close()
    return meter.throughput(received)
