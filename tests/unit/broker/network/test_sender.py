"""Sending a sequence of parts across partial writes (broker/network/sender.py)."""

from __future__ import annotations

import os
import random
from itertools import cycle, product, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.network.page_cache_prefetch import MAX_GAP_BYTES, PageCachePrefetcher, ReadAhead
from broker.network.sender import (
    COPIED_BYTES_PER_CALL,
    COPIED_REGION_BYTES,
    JOINED_BYTES,
    MAX_BYTES_PER_CALL,
    RUN_REGION_BYTES,
    RegionEnded,
    Sender,
)
from protocol.codec import decode, encoder
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import FetchResponse, FetchTopic, PartitionData
from protocol.records import FileRegion
from storage.io.disk import Disk, File
from storage.io.page_cache import PageCache
from tests.support.replica_harness import HeldWork

TOPICS, PARTITIONS = 50, 20
LARGE = COPIED_REGION_BYTES * 5 // 4
VERSION = 12
FRAME_AND_HEADER_BYTES = 9


class FakeTransport:
    """Takes the next count of bytes from a plan; None is: would block."""

    joins_regions = False

    def __init__(self, plan) -> None:
        self.plan = plan
        self.taken = bytearray()
        self.calls: list[str] = []
        self.by_sendfile = 0
        self.joined: list[bool] = []

    def _take(self, name: str, data: bytes) -> int | None:
        self.calls.append(name)
        count = next(self.plan)
        if count is None:
            return None
        self.taken += bytes(data[:count])
        return min(count, len(data))

    def send(self, buffer, *, more):
        self.joined.append(more)
        return self._take("send", buffer)

    def send_all(self, buffers, *, more):
        return self._take("send_all", b"".join(buffers))

    def send_file(self, region, skip, limit):
        data = os.pread(region.file.fileno(), min(region.length - skip, limit), region.position + skip)
        sent = self._take("send_file", data)
        self.by_sendfile += sent or 0
        return sent


def copying_sender(transport: FakeTransport) -> Sender:
    """A sender that copies small regions; nothing has to be prefetched."""
    return Sender(transport, ReadAhead(PageCachePrefetcher(HeldWork, lambda *_: None)))


SENDERS = [pytest.param(Sender, id="without page cache"), pytest.param(copying_sender, id="copying small regions")]


def file_with(path: Path, data: bytes) -> File:
    path.write_bytes(data)
    return Disk().open(str(path), write=False)


def send_everything(sender: Sender, parts) -> int:
    """Send and resume until all is gone; the number of turns."""
    turns = 1
    done = sender.send(list(parts))
    while not done:
        done = sender.resume()
        turns += 1
    return turns


@pytest.mark.parametrize(("length", "is_joined"), [(JOINED_BYTES - 100, True), (JOINED_BYTES, False)])
def test_only_a_small_region_is_joined_with_the_header(tmp_path: Path, length: int, *, is_joined: bool) -> None:
    transport = FakeTransport(repeat(1 << 30))
    assert Sender(transport).send([bytes(100), FileRegion(file_with(tmp_path / "f", bytes(length)), 0, length)])
    assert transport.joined == [is_joined]


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
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """50 topics of 20 partitions; a partition has a region, two regions, or nothing. Two regions are not small."""
    path = tmp_path_factory.mktemp("chain") / "segment"
    data = random.Random(1).randbytes(90_000)
    file = file_with(path, data)
    rng = random.Random(2)
    regions: dict[tuple[str, int], tuple[FileRegion, ...]] = {}
    for topic, index in product(range(TOPICS), range(PARTITIONS)):
        count = rng.choice([0, 1, 1, 1, 2])
        size = LARGE if index == 7 and topic in (3, 4) else 200
        regions[f"topic-{topic}", index] = tuple(
            FileRegion(file, rng.randrange(49_000), rng.randrange(size // 2, size)) for _ in range(count)
        )
    records = {
        place: b"".join(data[region.position : region.position + region.length] for region in some)
        for place, some in regions.items()
    }
    plain = b"".join(bytes(part) for part in answer_of(records) if not isinstance(part, FileRegion))
    return Chain(answer_of(regions), plain, records)


@pytest.mark.parametrize("sender_on", SENDERS)
@pytest.mark.parametrize("number", range(20))
def test_parts_are_sent_in_order_across_partial_writes_of_random_size(chain: Chain, number: int, sender_on) -> None:
    rng = random.Random(number)
    transport = FakeTransport(iter(lambda: rng.choice([None, 1, 2, 7, 100, 5000]), "never"))
    sender = sender_on(transport)
    send_everything(sender, chain.parts)
    assert bytes(transport.taken) == chain.answer
    assert sender.is_idle


@pytest.mark.parametrize("sender_on", SENDERS)
def test_parts_are_sent_in_order_one_byte_at_a_time(chain: Chain, sender_on) -> None:
    transport = FakeTransport(iter(lambda: 1, None))
    send_everything(sender_on(transport), chain.parts)
    assert bytes(transport.taken) == chain.answer
    answer = decode(FetchResponse, VERSION, transport.taken, FRAME_AND_HEADER_BYTES)
    found = {
        (topic.topic, partition.partition_index): bytes(partition.records)
        for topic in answer.responses
        for partition in topic.partitions
    }
    assert found == chain.records


def test_small_regions_are_sent_together_and_large_ones_by_sendfile(tmp_path: Path) -> None:
    file = file_with(tmp_path / "segment", random.Random(1).randbytes(4 * COPIED_REGION_BYTES))
    small, large = FileRegion(file, 5, COPIED_REGION_BYTES), FileRegion(file, 9, COPIED_REGION_BYTES + 1)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"a", small, b"b", small, b"c", large, b"d", small, b"e", small])
    assert transport.calls == ["send_all", "send_file", "send_all"]
    assert transport.by_sendfile == large.length


@pytest.mark.parametrize("end", [[], [b"end"]], ids=["at the end", "before bytes"])
def test_the_only_region_of_a_response_is_sent_by_sendfile(tmp_path: Path, end: list[Part]) -> None:
    file = file_with(tmp_path / "segment", bytes(9))
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"a", FileRegion(file, 0, 9), *end])
    assert transport.by_sendfile == 9


@pytest.mark.pure_python("a compiled class cannot be extended")
def test_one_call_copies_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """So a client that reads slowly costs little memory."""
    file = file_with(tmp_path / "segment", bytes(COPIED_REGION_BYTES))
    reads: list[int] = []

    class CountingReadAhead(ReadAhead):
        @staticmethod
        def read_cached(region):
            reads.append(region.length)
            return ReadAhead.read_cached(region)

    prefetcher = PageCachePrefetcher(HeldWork, lambda *_: None)
    sender = Sender(FakeTransport(cycle([1, None])), CountingReadAhead(prefetcher))
    assert not sender.send([FileRegion(file, 0, COPIED_REGION_BYTES)] * 100)
    for _ in range(10):
        assert not sender.resume()
    assert sum(reads) <= COPIED_BYTES_PER_CALL + COPIED_REGION_BYTES


def test_after_a_short_write_the_rest_is_tried_at_once(tmp_path: Path) -> None:
    """Until the socket takes nothing."""
    file = file_with(tmp_path / "segment", bytes(2 * LARGE))
    transport = FakeTransport(iter([1, 1, 2, None, LARGE]))
    sender = copying_sender(transport)
    assert not sender.send([b"ab", FileRegion(file, 0, LARGE)])
    assert transport.calls == ["send", "send", "send_file", "send_file"]
    assert sender.resume()


def test_one_call_sends_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    file = file_with(tmp_path / "segment", bytes(5 * MAX_BYTES_PER_CALL))
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert send_everything(Sender(transport), [b"h", FileRegion(file, 0, 5 * MAX_BYTES_PER_CALL)]) == 5 + 1


@pytest.mark.parametrize("sender_on", SENDERS)
def test_a_file_shorter_than_its_region_is_an_error(tmp_path: Path, sender_on) -> None:
    file = file_with(tmp_path / "segment", b"short")
    with pytest.raises(RegionEnded):
        send_everything(sender_on(FakeTransport(iter(lambda: 100, None))), [b"h", FileRegion(file, 0, 10)])


def small_regions(file: File, count: int, length: int, gap: int) -> list[FileRegion]:
    return [FileRegion(file, number * (length + gap), length) for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_small_regions_that_follow_each_other_are_sent_in_order(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    data = dice.randbytes(600_000)
    files = [file_with(tmp_path / name, data) for name in "ab"]
    parts: list[Part] = [b"head"]
    position = 0
    while position < 400_000:
        length = dice.choice((1, 70, 200, 5000, RUN_REGION_BYTES, RUN_REGION_BYTES + 1, COPIED_REGION_BYTES))
        parts.append(FileRegion(files[dice.random() < 0.1], position, length))
        position += length + dice.choice((0, 28, 28, MAX_GAP_BYTES, MAX_GAP_BYTES + 1))
        if dice.random() < 0.05:
            parts.append(b"between")
        if dice.random() < 0.03:
            position = dice.randrange(position + 1)
    expected = b"".join(
        [data[p.position : p.position + p.length] if isinstance(p, FileRegion) else bytes(p) for p in parts]
    )
    transport = FakeTransport(iter(lambda: dice.choice((None, 1, 100, 30_000, 2**30)), 0))
    send_everything(copying_sender(transport), parts)
    assert transport.taken == expected


def test_a_run_of_small_regions_is_one_read_and_one_call(tmp_path: Path) -> None:
    file = file_with(tmp_path / "log", random.Random(1).randbytes(300 * 228))
    regions = small_regions(file, 200, 200, 28)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"h", *regions, b"t"])
    assert len(transport.calls) == 2
    assert len(transport.taken) == 200 * 200 + 2


def test_regions_that_the_page_cache_has_are_sent_if_a_gap_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_with(tmp_path / "log", random.Random(1).randbytes(10_000))
    monkeypatch.setattr(PageCache, "read_resident_into", lambda *_: 0)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"h", *small_regions(file, 8, 200, 28), b"t"])
    assert len(transport.taken) == 8 * 200 + 2
    assert not transport.by_sendfile


def test_a_run_may_end_the_response(tmp_path: Path) -> None:
    file = file_with(tmp_path / "log", random.Random(1).randbytes(20_000))
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"h", *small_regions(file, 3, 200, 5000), *small_regions(file, 3, 200, 28)])
    assert len(transport.taken) == 6 * 200 + 1
