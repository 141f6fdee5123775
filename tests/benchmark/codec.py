"""Decoding and encoding compared with kio and kafka-python, in one run: make bench ARGS="codec [seconds per figure]".

Every library decodes the same bytes and encodes its own object of them; the bytes are compared first.
The aim: never slower than kafka-python, encoding never slower than kio. Ours is called as the broker calls it, by
the compiled function; the others by their public interfaces.
"""

from __future__ import annotations

import gc
import io
import sys
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import kafka.protocol.consumer.fetch as kafka_python_fetch
import kafka.protocol.metadata as kafka_python_metadata
import kafka.protocol.producer as kafka_python_producer
import kio.schema.fetch.v17 as kio_fetch
import kio.schema.metadata.v13 as kio_metadata
import kio.schema.produce.v13 as kio_produce
from kio.serial import entity_reader, entity_writer

from protocol.codec import decoder, encode, encoder
from protocol.messages import produce_fetch as pf
from protocol.messages.metadata import MetadataResponse
from protocol.schema import Message
from tests.benchmark.interpreters import this_interpreter
from tests.support.messages import message

BATCH = bytes(61) + bytes(range(256)) * 64  # the size of a batch of 16 KiB; its contents are never read
TOPIC_ID = bytes(range(16))
ROUNDS = 15


class Case(NamedTuple):
    name: str
    message: Message
    version: int
    kafka_python: Any
    kio: Any


def fetch_request(partitions: int) -> Message:
    fields = {"current_leader_epoch": 4, "partition_max_bytes": 1_048_576}
    rows = [{"partition": index, "fetch_offset": 10_000 + index, **fields} for index in range(partitions)]
    topic = {"topic_id": TOPIC_ID, "partitions": rows}
    session = {"session_id": 77, "session_epoch": 3}
    return message(pf.FetchRequest, max_wait_ms=500, min_bytes=1, max_bytes=52_428_800, **session, topics=[topic])


def produce_request() -> Message:
    topic = {"topic_id": TOPIC_ID, "partition_data": [{"index": 3, "records": BATCH}]}
    return message(pf.ProduceRequest, acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetch_response(partitions: int) -> Message:
    """The frame around the records, which are empty because they are never copied."""
    fields = {"error_code": 0, "high_watermark": 1000, "last_stable_offset": 1000, "records": b""}
    rows = [{"partition_index": index, **fields} for index in range(partitions)]
    return message(pf.FetchResponse, responses=[{"topic_id": TOPIC_ID, "partitions": rows}], session_id=77)


def metadata_response(partitions: int) -> Message:
    fields = {"error_code": 0, "leader_epoch": 5, "replica_nodes": [1, 2, 3], "isr_nodes": [1, 2, 3]}
    rows = [{"partition_index": index, "leader_id": 1 + index % 3, **fields} for index in range(partitions)]
    topic = {"error_code": 0, "name": "flights", "topic_id": TOPIC_ID, "partitions": rows}
    brokers = [{"node_id": node, "host": "broker.example.org", "port": 9092} for node in (1, 2, 3)]
    return message(MetadataResponse, brokers=brokers, cluster_id="x" * 22, controller_id=1, topics=[topic])


def cases() -> list[Case]:
    fetches = kafka_python_fetch.FetchRequest, kio_fetch.request.FetchRequest
    answers = kafka_python_fetch.FetchResponse, kio_fetch.response.FetchResponse
    produce = kafka_python_producer.ProduceRequest, kio_produce.request.ProduceRequest
    metadata = kafka_python_metadata.MetadataResponse, kio_metadata.response.MetadataResponse
    return [
        Case("Fetch request, 1 partition", fetch_request(1), 17, *fetches),
        Case("Fetch request, 100 partitions", fetch_request(100), 17, *fetches),
        Case("Produce request, one batch", produce_request(), 13, *produce),
        Case("Fetch response, 1 partition", fetch_response(1), 17, *answers),
        Case("Fetch response, 100 partitions", fetch_response(100), 17, *answers),
        Case("Metadata response, 1,000 partitions", metadata_response(1000), 13, *metadata),
    ]


def runs(case: Case) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """For each library the decoder and the encoder; checks that all produce the same bytes."""
    cls, version, frame = type(case.message), case.version, encode(case.message, case.version)
    read, write = decoder(cls, version), encoder(cls, version)
    ours = read(frame, 0)[0]
    received = bytearray(frame)  # as received from a connection
    theirs = case.kafka_python.decode(frame, version=version)
    theirs._header = None  # its decoder does not set this, its encoder requires it
    kio_read, kio_write = entity_reader(case.kio), entity_writer(case.kio)
    kio_object = kio_read(frame, 0)[0]

    def write_kio() -> bytes:
        buffer = io.BytesIO()
        kio_write(buffer, kio_object)
        return buffer.getvalue()

    for encoded in (encode(ours, version), theirs.encode(version=version), write_kio()):
        assert encoded == frame, f"{case.name}: the libraries disagree"
    return {
        "ours": (lambda: read(received, 0), lambda: write(ours)),
        "kafka-python": (
            lambda: case.kafka_python.decode(frame, version=version),
            lambda: theirs.encode(version=version),
        ),
        "kio": (lambda: kio_read(frame, 0), write_kio),
    }


def microseconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The best of many rounds; the libraries alternate, so that disturbances affect all of them."""
    timers = {name: timeit.Timer(call, setup=gc.enable) for name, call in calls.items()}
    once_s = {name: min(timer.repeat(2, number=1)) for name, timer in timers.items()}
    counts = {name: max(1, int(seconds / ROUNDS / max(once_s[name], 1e-7))) for name in calls}
    rounds = [{name: timer.timeit(counts[name]) for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: min(elapsed[name] for elapsed in rounds) / counts[name] * 1e6 for name in calls}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.4
    print(f"in this process: {this_interpreter()}")
    print(f"{'microseconds':46}{'ours':>9}{'kafka-python':>14}{'kio':>10}{'ours/k-p':>10}{'ours/kio':>10}")
    missed = 0
    gc.collect()
    gc.freeze()  # as the broker does after its start
    for case in cases():
        libraries = runs(case)
        for side, label in enumerate(("decode", "encode")):
            elapsed = microseconds({name: pair[side] for name, pair in libraries.items()}, seconds)
            ours, kafka_python, kio = elapsed["ours"], elapsed["kafka-python"], elapsed["kio"]
            is_slow = ours > kafka_python or (label == "encode" and ours > kio)
            missed += is_slow
            figures = f"{ours:9.2f}{kafka_python:14.2f}{kio:10.2f}{ours / kafka_python:10.2f}{ours / kio:10.2f}"
            print(f"{label + ' ' + case.name:46}{figures}{'  missed' if is_slow else ''}")
    return 1 if missed else 0
