"""Sending a sequence of parts across partial writes (broker/network/sender.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.network.sender import MAX_BYTES_PER_CALL, RegionEnded, Sender
from protocol.codec import decode, encoder
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import FetchResponse, FetchTopic, PartitionData
from protocol.records import FileRegion

TOPICS, PARTITIONS = 50, 20
VERSION = 12
FRAME_AND_HEADER_BYTES = 9


class FakeTransport:
    """Takes the next count of bytes from a plan; None is: would block."""

    def __init__(self, plan) -> None:
        self.plan = plan
        self.taken = bytearray()

    def _take(self, data: bytes) -> int | None:
        count = next(self.plan)
        if count is None:
            return None
        self.taken += bytes(data[:count])
        return min(count, len(data))

    def send(self, buffer, *, more):
        return self._take(buffer)

    def send_all(self, buffers, *, more):
        return self._take(b"".join(buffers))

    def send_file(self, region, skip, limit):
        region.file.seek(region.position + skip)
        return self._take(region.file.read(min(region.length - skip, limit)))


def send_everything(sender: Sender, parts) -> int:
    """Send and resume until all is gone; the number of turns."""
    turns = 1
    done = sender.send(list(parts))
    while not done:
        done = sender.resume()
        turns += 1
    return turns


class Chain(NamedTuple):
    """A Fetch answer as it is sent, and what it says."""

    parts: list[Part]
    answer: bytes
    records: dict[tuple[str, int], bytes]


def answer_of(records: dict[tuple[str, int], Any]) -> list[Part]:
    """The parts of an answer that gives these records, regions or bytes."""
    topics: dict[str, FetchTopic[PartitionData]] = {}
    for (name, index), some in records.items():
        topic = topics.setdefault(name, FetchTopic(topic=name, partitions=[]))
        topic.partitions.append(PartitionData(partition_index=index, error_code=0, high_watermark=9, records=some))
    answer = FetchResponse(responses=list(topics.values()))
    return frame_response(7, encoder(FetchResponse, VERSION)(answer), flexible_header=True)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """50 topics of 20 partitions; a partition has a region, two regions, or nothing."""
    path = tmp_path_factory.mktemp("chain") / "segment"
    data = random.Random(1).randbytes(50_000)
    path.write_bytes(data)
    rng = random.Random(2)
    with path.open("rb") as file:
        regions: dict[tuple[str, int], tuple[FileRegion, ...]] = {}
        for topic, index in product(range(TOPICS), range(PARTITIONS)):
            count = rng.choice([0, 1, 1, 1, 2])
            regions[f"topic-{topic}", index] = tuple(
                FileRegion(file, rng.randrange(49_000), rng.randrange(200)) for _ in range(count)
            )
        records = {
            place: b"".join(data[region.position : region.position + region.length] for region in some)
            for place, some in regions.items()
        }
        plain = b"".join(bytes(part) for part in answer_of(records) if not isinstance(part, FileRegion))
        yield Chain(answer_of(regions), plain, records)


@pytest.mark.parametrize("number", range(20))
def test_parts_are_sent_in_order_across_partial_writes_of_random_size(chain: Chain, number: int) -> None:
    rng = random.Random(number)
    transport = FakeTransport(iter(lambda: rng.choice([None, 1, 2, 7, 100, 5000]), "never"))
    sender = Sender(transport)
    send_everything(sender, chain.parts)
    assert bytes(transport.taken) == chain.answer
    assert sender.is_idle


def test_parts_are_sent_in_order_one_byte_at_a_time(chain: Chain) -> None:
    transport = FakeTransport(iter(lambda: 1, None))
    send_everything(Sender(transport), chain.parts)
    assert bytes(transport.taken) == chain.answer
    answer = decode(FetchResponse, VERSION, transport.taken, FRAME_AND_HEADER_BYTES)
    found = {
        (topic.topic, partition.partition_index): bytes(partition.records)
        for topic in answer.responses
        for partition in topic.partitions
    }
    assert found == chain.records


def test_one_call_sends_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(5 * MAX_BYTES_PER_CALL))
    with path.open("rb") as file:
        transport = FakeTransport(iter(lambda: 2**30, None))
        assert send_everything(Sender(transport), [b"h", FileRegion(file, 0, 5 * MAX_BYTES_PER_CALL)]) == 5 + 1


def test_a_file_shorter_than_its_region_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    with path.open("rb") as file, pytest.raises(RegionEnded):
        send_everything(Sender(FakeTransport(iter(lambda: 100, None))), [b"h", FileRegion(file, 0, 10)])
