"""Malformed requests and other protocols: the connection is closed, and the broker continues to serve other clients."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest

from barnabas import Broker
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.raw_client import RawClient

API_VERSIONS_REQUEST = bytes.fromhex("0000000b0012000000000007000174")
MALFORMED = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("1603010200010001fc0303") + random.Random(1).randbytes(506),
    "SSH": b"SSH-2.0-OpenSSH_9.0\r\n",
    "random": random.Random(2).randbytes(1000),
    "a negative length": struct.pack(">i", -1) + b"x" * 20,
    "a huge length": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "an empty frame": struct.pack(">i", 0),
    "half a header": struct.pack(">i", 3) + b"abc",
    "an unknown API": struct.pack(">ihhih", 12, 999, 0, 1, 2) + b"ab",
    "an unknown version": struct.pack(">ihhih", 12, 3, 99, 1, 2) + b"ab",
    "half a message": struct.pack(">ihhih", 12, 3, 12, 1, 2) + b"ab",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_connection_with_another_protocol_is_closed(kafka_broker: Broker, name: str) -> None:
    """There is no response."""
    with RawClient(kafka_broker.bootstrap) as peer:
        peer.socket.sendall(MALFORMED[name])
        with contextlib.suppress(ConnectionResetError):
            assert peer.socket.recv(100) == b""


def test_vanished_peers_leave_no_state(kafka_broker: Broker) -> None:
    """A torn frame, a reset before the response, a connection without a request: a hundred of each."""
    for _ in range(100):
        with RawClient(kafka_broker.bootstrap) as peer:
            peer.socket.sendall(struct.pack(">i", 100) + b"x" * 10)
        with RawClient(kafka_broker.bootstrap) as peer:
            peer.socket.sendall(API_VERSIONS_REQUEST)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        RawClient(kafka_broker.bootstrap).close()
    with RawClient(kafka_broker.bootstrap) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_a_half_closed_client_still_gets_the_answer(kafka_broker: Broker) -> None:
    """A half-closed socket after a complete request."""
    with RawClient(kafka_broker.bootstrap) as peer:
        peer.socket.sendall(API_VERSIONS_REQUEST)
        peer.socket.shutdown(socket.SHUT_WR)
        assert len(peer.socket.recv(4)) == 4


@pytest.mark.parametrize("version", [-(2**15), -1, 5, 99])
def test_an_unknown_version_of_api_versions_gets_the_known_ones(kafka_broker: Broker, version: int) -> None:
    """In the layout of version 0; a client then asks again."""
    with RawClient(kafka_broker.bootstrap) as client:
        client.send_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, -1) + b"\0")
        answer = client.receive_frame()
    assert answer == struct.pack(">ihihhh", 7, ErrorCode.UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, 0, 4)


def test_pipelined_requests_are_answered_in_their_order(kafka_broker: Broker, kafka_topic: str) -> None:
    """Some requests wait for a millisecond, others not at all; correlation ids ascend."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    topics = [FetchTopic(topic=kafka_topic, partitions=[partition])]
    wait = FetchRequest(replica_id=-1, max_wait_ms=1, min_bytes=1, topics=topics)
    rng = random.Random(3)
    with RawClient(kafka_broker.bootstrap) as client:
        sent = []
        for _ in range(60):
            query = [rng.choice([(wait, 4), (ApiVersionsRequest(), 0)]) for _ in range(rng.randrange(1, 12))]
            sent += [client.send(request, version) for request, version in query]
            answered = [struct.unpack_from(">i", client.receive_frame())[0] for _ in range(rng.randrange(len(sent)))]
            assert answered == sent[: len(answered)]
            del sent[: len(answered)]
