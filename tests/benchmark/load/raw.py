"""Load over raw sockets: ready-made frames, answers read and not looked into, so that the client costs little.

Versions are those that every client of the last years speaks: Produce 7, Fetch 11, without a session.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from struct import Struct
from typing import Any

from protocol.api import request_header_version
from protocol.codec import encode
from protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import BatchBuilder
from protocol.schema import Message
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import Site
from tests.support.loading import end_offset, end_offsets, fetch_request, produce_request
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PRODUCE_VERSION = 7
FETCH_VERSION = 11
_API_VERSIONS_VERSION = 0
_LENGTH = Struct(">i")
_DISCARD = 0x20  # MSG_TRUNC of Linux's TCP: bytes are thrown away inside the kernel
_BUFFER_BYTES = 1 << 20
_PLACES = 12
_IN_FLIGHT = 5
_TOPIC_ID = bytes(16)


def frame(request: Message, version: int, correlation_id: int = 7) -> bytes:
    """A request as it goes over the wire."""
    key = type(request).API_KEY
    assert key is not None
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=correlation_id, client_id="bench"
    )
    body = encode(header, request_header_version(key, version)) + encode(request, version)
    return _LENGTH.pack(len(body)) + body


def batch(records: int, value_bytes: int, ahead_ms: int = 0) -> bytes:
    """A batch of records of random bytes, of now or of a while ahead."""
    builder = BatchBuilder()
    value, time_ms = os.urandom(value_bytes), time.time_ns() // 1_000_000 + ahead_ms
    for _ in range(records):
        builder.append(time_ms, None, value)
    return bytes(builder.build())


def produce_frame(topic: str, records: bytes, acks: int = 1, partitions: int = 1) -> bytes:
    """A Produce of one batch to each of the first partitions."""
    request: ProduceRequest = produce_request({topic: [records] * partitions})
    request.acks = acks
    return frame(request, PRODUCE_VERSION)


def fetch_frame(topic: str, offset: int, max_bytes: int, max_wait_ms: int) -> bytes:
    request = fetch_request(
        FETCH_VERSION, {(topic, _TOPIC_ID, 0): offset}, max_bytes=max_bytes, max_wait_ms=max_wait_ms
    )
    return frame(request, FETCH_VERSION)


class Peer:
    """One connection of a client that knows what it wants to send."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        """What `answer` read."""
        self.send = self._socket.sendall
        self.fileno = self._socket.fileno

    def answer(self) -> int:
        """Read the only answer that is under way into the buffer, one of up to its size; its length."""
        receive, buffer = self._socket.recv_into, self.buffer
        filled = 0
        while filled < 4 or filled < 4 + _LENGTH.unpack_from(buffer)[0]:
            filled += receive(buffer[filled:]) or self._hung_up()
        return filled

    def answers(self) -> int:
        """Read what has come of answers that are all equal; bytes."""
        return self._socket.recv_into(self.buffer) or self._hung_up()

    def discard(self) -> int:
        """Throw an answer away of which nothing else follows; its size."""
        receive, buffer = self._socket.recv_into, self.buffer
        receive(buffer[:4], 4, socket.MSG_WAITALL)
        size: int = _LENGTH.unpack_from(buffer)[0]
        left = size
        while left:
            left -= receive(buffer, min(left, _BUFFER_BYTES), _DISCARD) or self._hung_up()
        return size

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
    """Create a topic whose files go soon after its deletion, and see that every partition takes records.

    `replicas` are those of every partition, the leader first, who is asked; else there is one broker.
    """
    settings = {"file.delete.delay.ms": 1000, **configs}
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if replicas else partitions,
        replication_factor=-1 if replicas else 1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index in range(partitions if replicas else 0)
        ],
        configs=[CreatableTopicConfig(name=key, value=str(value)) for key, value in settings.items()],
    )
    answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
    assert answer.topics[0].error_code == 0, answer
    touch(client, name, partitions)


def touch(client: RawClient, topic: str, partitions: int) -> None:
    """Append one record to every partition, as soon as each is there."""
    missing = set(range(partitions))

    def try_the_missing() -> bool:
        missing.difference_update(write(client, topic, missing))
        return not missing

    until(try_the_missing, f"every partition of {topic} takes a record", within_s=120)


def write(client: RawClient, topic: str, partitions: Iterable[int], acks: int = 1) -> set[int]:
    """A record to each of some partitions; which of them took it."""
    record = memoryview(batch(1, 100))
    data = [PartitionProduceData(index=index, records=record) for index in sorted(partitions)]
    topic_data = [TopicProduceData(name=topic, partition_data=data)]
    answer = client.ask(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topic_data), PRODUCE_VERSION)
    return {part.index for part in answer.responses[0].partition_responses if part.error_code == 0}


def delete_topic(client: RawClient, name: str) -> None:
    answer: Any = client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), 5)
    assert answer.responses[0].error_code == 0, answer


def fill(bootstrap: str, topic: str, batch_bytes: int, total_bytes: int, partitions: int = 1) -> None:
    """Append batches of records of 1 KiB to the partitions in turn until the topic holds so much."""
    times = total_bytes // (batch_bytes * partitions)
    append(bootstrap, topic, batch(batch_bytes // 1024, 1024), partitions, times)


def append(bootstrap: str, topic: str, records: bytes, partitions: int, times: int = 1) -> None:
    """Append a batch to each of the partitions, so many times."""
    request = produce_frame(topic, records, partitions=partitions)
    peer = Peer(bootstrap)
    for _ in range(times):
        peer.call(request)
    peer.close()


# ---------------------------------------------------------------- loads
def api_versions(site: Site, count: int) -> Outcome:
    return _sequential(site, count, frame(ApiVersionsRequest(), _API_VERSIONS_VERSION))


def produce_one(site: Site, count: int, topic: str, acks: int = 1) -> Outcome:
    """Produce of one record of 100 bytes, one after the other."""
    return _sequential(site, count, produce_frame(topic, batch(1, 100), acks))


def fetch_at_end(site: Site, count: int, topic: str) -> Outcome:
    """Fetch where there is nothing, without waiting."""
    with RawClient(site.bootstrap) as client:
        offset = end_offset(client, topic)
    return _sequential(site, count, fetch_frame(topic, offset, _BUFFER_BYTES, 0))


def _sequential(site: Site, count: int, request: bytes) -> Outcome:
    peer = Peer(site.bootstrap)
    clock = time.perf_counter
    for _ in range(count // 10):
        peer.call(request)
    took = []
    with Meter(*site.pids) as meter:
        for _ in range(count):
            started = clock()
            peer.call(request)
            took.append(clock() - started)
    peer.close()
    return meter.each(took)


def wake(site: Site, count: int, topic: str) -> Outcome:
    """A parked Fetch is answered because of a Produce over another connection: from the one's sending to the other."""
    with RawClient(site.bootstrap) as client:
        offset = end_offset(client, topic)
    producer, consumer = Peer(site.bootstrap), Peer(site.bootstrap)
    request = produce_frame(topic, batch(1, 100))
    clock = time.perf_counter
    took = []
    with Meter(site.pid) as meter:
        for _ in range(count):
            consumer.send(fetch_frame(topic, offset, _BUFFER_BYTES, 5000))
            time.sleep(0.001)  # it is parked by now
            started = clock()
            producer.send(request)
            consumer.answer()
            took.append(clock() - started)
            producer.answer()
            offset += 1
    producer.close()
    consumer.close()
    return meter.each(took)


def produce(site: Site, topic: str, batch_bytes: int, total_bytes: int, partitions: int = 1, acks: int = 1) -> Outcome:
    """The same request again and again over one connection, a few in flight: a batch for each partition."""
    records = max(1, batch_bytes // 1024)
    request = produce_frame(topic, batch(records, 1024), acks, partitions)
    peer = Peer(site.bootstrap)
    peer.send(request)
    answer_bytes = peer.answer()
    with RawClient(site.bootstrap) as client:
        before = sum(end_offsets(client, topic, partitions))
    count = max(_IN_FLIGHT, total_bytes // (records * 1024 * partitions))
    sent = received = unread = 0
    with Meter(*site.pids) as meter:
        while received < count:
            while sent < count and sent - received < _IN_FLIGHT:
                peer.send(request)
                sent += 1
            unread += peer.answers()
            received += unread // answer_bytes
            unread %= answer_bytes
    peer.close()
    with RawClient(site.bootstrap) as client:
        assert sum(end_offsets(client, topic, partitions)) - before == count * records * partitions, "refused"
    return meter.throughput(count * records * 1024 * partitions)


def fetch(site: Site, topic: str, max_bytes: int, total_bytes: int) -> Outcome:
    """Twelve places of a partition in turn over one connection, one request in flight; the bytes are thrown away."""
    with RawClient(site.bootstrap) as client:
        end = end_offset(client, topic)
    requests = [fetch_frame(topic, end * partition // 16, max_bytes, 500) for partition in range(_PLACES)]
    peer = Peer(site.bootstrap)
    for request in requests:
        peer.send(request)
        peer.discard()
    turn = received = 0
    with Meter(site.pid) as meter:
        while received < total_bytes:
            peer.send(requests[turn % _PLACES])
            received += peer.discard()
            turn += 1
    peer.close()
    return meter.throughput(received)
