"""Zero copy on the running daemon: the received bytes are compared with its system calls.

64 MiB are read; BARNABAS_ZERO_COPY_MIB=1024 reads more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from barnabas.embedded import Broker
from protocol.batch_builder import BatchBuilder
from protocol.records import BATCH_OVERHEAD, crc_is_valid, headers
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower import Client, Follower
from tests.support.loading import CONSUMER, ask_for, create, end_offset, fetch_request, load, one_record, produce
from tests.support.raw_client import RawClient
from tests.support.system_calls import READS, SENDS, needs_strace, total, watched
from tests.support.timestamps import RECENT_MS

MIB = 1024 * 1024
LOADED_BYTES = int(os.environ.get("BARNABAS_ZERO_COPY_MIB", "64")) * MIB
ASKED_BYTES = MIB
INTERVAL_BYTES = 4096
FOLLOWER = 2


class Loaded(NamedTuple):
    """A broker with a topic `t` of one partition."""

    broker: Broker
    topic_id: bytes
    size: int
    end_offset: int


def batches(rng: random.Random) -> Iterator[bytes]:
    """Batches of random sizes, below and above the index interval."""
    stock = []
    for _ in range(200):
        builder = BatchBuilder()
        for _ in range(rng.randrange(1, 4)):
            builder.append(RECENT_MS, None, rng.randbytes(rng.choice([10, 200, 3000, 30_000, 100_000])))
        stock.append(bytes(builder.build()))
    size = 0
    while size < LOADED_BYTES:
        batch = rng.choice(stock)
        size += len(batch)
        yield batch


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """A loaded broker, and a registered follower outside the ISR."""
    with Broker(tmp_path_factory.mktemp("zero-copy") / "data", settings=WITH_CONTROLLER) as broker:
        client = Client(broker.bootstrap)
        with Follower(broker.bootstrap, controller_of(broker), client.cluster_id(), FOLLOWER) as follower:
            assert follower.register().error_code == 0
        topic_id = client.create("t", [1, FOLLOWER], segment_bytes=LOADED_BYTES // 4)
        load(client.raw, "t", batches(random.Random(5)))
        size = sum(path.stat().st_size for path in (broker.data_dir / "t-0").glob("*.log"))
        assert size >= LOADED_BYTES
        yield Loaded(broker, topic_id, size, end_offset(client.raw, "t"))
        client.raw.close()


class Reading(NamedTuple):
    """What a reader received."""

    response_bytes: int
    fetches: int
    end_offset: int


def read_to_the_end(client: RawClient, loaded: Loaded, version: int, replica_id: int) -> Reading:
    """Fetches from offset 0 on, and checks every complete batch."""
    offset = received = fetches = 0
    while offset < loaded.end_offset:
        request = fetch_request(
            version, {("t", loaded.topic_id, 0): offset}, replica_id=replica_id, max_bytes=ASKED_BYTES
        )
        answer, size = ask_for(client, request, version)
        (data,) = answer.responses[0].partitions
        assert data.error_code == 0
        for position, header in headers(data.records):
            assert header.base_offset <= offset < header.next_offset
            assert crc_is_valid(data.records, position, header)
            offset = header.next_offset
        received += size
        fetches += 1
    return Reading(received, fetches, offset)


@needs_strace
@pytest.mark.parametrize(
    ("version", "replica_id"),
    [
        pytest.param(12, CONSUMER, id="consumer"),
        pytest.param(18, CONSUMER, id="consumer, v18"),
        pytest.param(12, FOLLOWER, id="follower by replica id"),
        pytest.param(17, FOLLOWER, id="follower by ReplicaState"),
    ],
)
def test_records_are_sent_by_sendfile_and_only_batch_headers_are_read(
    loaded: Loaded, tmp_path: Path, version: int, replica_id: int
) -> None:
    broker = loaded.broker
    with RawClient(broker.bootstrap) as client, watched(broker.pid, SENDS + READS, tmp_path / "trace") as calls:
        read = read_to_the_end(client, loaded, version, replica_id)
        # When this is answered, the trace has all that was sent before.
        at_end = fetch_request(version, {("t", loaded.topic_id, 0): read.end_offset})
        _, last_size = ask_for(client, at_end, version)
    assert read.end_offset == loaded.end_offset
    assert read.response_bytes > loaded.size
    from_files = total(calls, ("sendfile",), ".log", on_sockets=True)
    sent = total(calls, SENDS, on_sockets=True)
    assert read.response_bytes <= sent <= read.response_bytes + last_size, "not every call that sends is watched"
    assert from_files > 0.99 * sent
    assert not [call for call in calls if call.name == "mmap" and ".log>" in call.arguments]
    looked_at = total(calls, READS, ".log")
    print(
        f"{from_files / sent:.4%} of {sent} bytes by sendfile, {looked_at} bytes of the log read in {read.fetches} look-ups"
    )
    assert looked_at <= read.fetches * (INTERVAL_BYTES + BATCH_OVERHEAD)


TOPICS, PARTITIONS = 50, 20


def value_of(topic: str, index: int) -> bytes:
    """The unique contents of a partition."""
    return f"{topic}-{index} ".encode() * (1 + (index * 7 + len(topic)) % 40)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, dict[str, bytes]]]:
    """A broker with 50 topics of 20 partitions, a record in each, and their ids by name."""
    names = [f"topic-{number}" for number in range(TOPICS)]
    settings = {"socket.send.buffer.bytes": 2048}
    with Broker(tmp_path_factory.mktemp("wide") / "data", settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            ids = create(client, *names, partitions=PARTITIONS)
            produce(
                client, {name: [one_record(value_of(name, index)) for index in range(PARTITIONS)] for name in names}
            )
        yield broker, dict(zip(names, ids, strict=True))


@pytest.mark.parametrize("version", [4, 12, 18])
def test_a_thousand_partitions_are_sent_in_order_through_a_tiny_window(
    wide: tuple[Broker, dict[str, bytes]], version: int
) -> None:
    """A receive buffer of 1 KiB would make the kernel's window fall below a segment: a fetch would take two minutes."""
    broker, ids = wide
    places = [(name, topic_id, index) for name, topic_id in ids.items() for index in range(PARTITIONS)]
    random.Random(version).shuffle(places)
    request = fetch_request(version, dict.fromkeys(places, 0), max_bytes=50 * MIB)
    with RawClient(broker.bootstrap, receive_buffer_bytes=4096) as client:
        answer = client.ask(request, version)
    name_of = {topic_id: name for name, topic_id in ids.items()}
    found = [
        (topic.topic or name_of[topic.topic_id], partition.partition_index, bytes(partition.records))
        for topic in answer.responses
        for partition in topic.partitions
    ]
    assert [(name, index) for name, index, _ in found] == [
        (topic.topic, partition.partition) for topic in request.topics for partition in topic.partitions
    ]
    for name, index, records in found:
        ((_, header),) = headers(records)
        assert crc_is_valid(records, 0, header)
        assert value_of(name, index) in records
