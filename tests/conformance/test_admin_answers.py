"""The table of admin answers is what Apache Kafka says."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from protocol.codec import decode, encode
from protocol.messages import admin
from protocol.schema import Message
from tests.support.admin_cases import CASES, normalised, topic
from tests.support.kafka import ApacheKafka, needs_kafka

RESPONSES: dict[int, type[Message]] = {
    19: admin.CreateTopicsResponse,
    20: admin.DeleteTopicsResponse,
    37: admin.CreatePartitionsResponse,
    44: admin.IncrementalAlterConfigsResponse,
}


def ask(connection: socket.socket, request: Message) -> Message:
    """Send a request in its highest version, which is flexible, and read the answer."""
    version = request.MAX_VERSION
    header = request.API_KEY.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\7" + b"\0\1t" + b"\0"
    frame = header + encode(request, version)
    connection.sendall(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(_exactly(connection, 4), "big")
    answer = _exactly(connection, size)
    return decode(RESPONSES[request.API_KEY], version, answer, 5)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        assert more, "the broker closed the connection"
        received += more
    return received


@pytest.fixture(scope="module")
def kafka() -> Iterator[socket.socket]:
    with ApacheKafka() as broker, socket.create_connection(("127.0.0.1", broker.port)) as connection:
        topics = [topic("t1", 3), topic("t2", 2, configs=[("cleanup.policy", "compact,delete")]), topic("c.c")]
        made = ask(connection, admin.CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        assert [code for _, code, _ in normalised(made)] == [0, 0, 0]
        yield connection


@needs_kafka
@pytest.mark.parametrize("api", CASES)
def test_kafka_answers_as_the_table_says(kafka: socket.socket, api: str) -> None:
    """The oracle of the controller's own tests: codes and sentences word for word."""
    wrong = []
    for case in CASES[api]:
        answer = normalised(ask(kafka, case.request))
        if answer != case.answer:
            wrong.append(f"{case.request}\n  Kafka: {answer}\n  table: {case.answer}")
    assert not wrong, "\n".join(wrong)
