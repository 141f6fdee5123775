"""Sending a sequence of parts across partial writes (broker/network/sender.py)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, product, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.network.page_cache_prefetch import (
    COPIED_BYTES_PER_CALL,
    COPIED_RANGE_BYTES,
    PageCachePrefetcher,
    ReadAhead,
)
from broker.network.sender import (
    _MAX_VAIN_TRIES,
    _SHORT_WRITES_PER_TRY,
    ALONE_MS,
    JOINED_BYTES,
    MAX_BYTES_ALONE,
    MAX_BYTES_PER_CALL,
    RegionEnded,
    Sender,
)
from broker.network.socket_io import PlaintextTransportLayer
from protocol.codec import decode, encoder
from protocol.file_region import FileRegion, HasFileno, Region, ScatteredRegion, file_regions
from protocol.framing import Part, frame_response
from protocol.messages.produce_fetch import FetchResponse, FetchTopic, PartitionData
from protocol.primitives import Buffer
from storage.io.disk import Disk, File
from storage.io.page_cache import MAX_GAP_BYTES, PageCache, Span
from tests.support.replica_harness import read_regions

TOPICS, PARTITIONS = 50, 20
LARGE = COPIED_RANGE_BYTES * 5 // 4
VERSION = 12
FRAME_AND_HEADER_BYTES = 9
NO_READS: Any = None
"""An executor that is never used: everything is in the page cache."""


class FakeTransport(PlaintextTransportLayer):
    """Takes the next count of bytes from a plan; None is: would block."""

    joins_regions = False

    def __init__(self, plan: Iterator[int | None]) -> None:
        self.plan = plan
        self.taken = bytearray()
        self.calls: list[str] = []
        self.by_sendfile = 0
        self.joined: list[bool] = []

    def _take(self, name: str, data: Buffer) -> int | None:
        self.calls.append(name)
        count = next(self.plan)
        if count is None:
            return None
        self.taken += bytes(data[:count])
        return min(count, len(data))

    def send(self, buffer: Buffer, *, more: bool) -> int | None:
        self.joined.append(more)
        return self._take("send", buffer)

    def send_all(self, buffers: Sequence[Buffer], *, more: bool) -> int | None:
        return self._take("send_all", b"".join(buffers))

    def send_file(self, region: FileRegion, skip: int, limit: int) -> int | None:
        data = os.pread(region.file.fileno(), min(region.length - skip, limit), region.position + skip)
        sent = self._take("send_file", data)
        self.by_sendfile += sent or 0
        return sent


def copying_sender(transport: FakeTransport) -> Sender:
    """A sender that copies small regions; nothing has to be prefetched."""
    return Sender(transport, ReadAhead(PageCachePrefetcher(NO_READS, lambda *_: None)))


SENDERS = [pytest.param(Sender, id="without page cache"), pytest.param(copying_sender, id="copying small regions")]


def file_with(path: Path, data: bytes) -> File:
    path.write_bytes(data)
    return Disk().open(str(path), write=False)


def send_everything(sender: Sender, parts: Iterable[Part]) -> int:
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
    return chain_of(tmp_path_factory.mktemp("chain") / "segment", TOPICS, PARTITIONS)


def chain_of(path: Path, topics: int, partitions: int) -> Chain:
    """A partition has a region, two regions, or nothing. The regions of two partitions are not small."""
    data = random.Random(1).randbytes(131_000)
    file = file_with(path, data)
    rng = random.Random(2)
    regions: dict[tuple[str, int], tuple[FileRegion, ...]] = {}
    for topic, index in product(range(topics), range(partitions)):
        count = rng.choice([0, 1, 1, 1, 2])
        size = LARGE if index == 7 and topic in (3, 4) else 200
        regions[f"topic-{topic}", index] = tuple(
            FileRegion(file, rng.randrange(49_000), rng.randrange(size // 2, size)) for _ in range(count)
        )
    records = {
        place: b"".join(data[region.position : region.position + region.length] for region in some)
        for place, some in regions.items()
    }
    plain = b"".join(bytes(part) for part in answer_of(records) if not isinstance(part, FileRegion | ScatteredRegion))
    return Chain(answer_of(regions), plain, records)


@pytest.mark.parametrize("sender_on", SENDERS)
@pytest.mark.parametrize("number", range(20))
def test_parts_are_sent_in_order_across_partial_writes_of_random_size(
    chain: Chain, number: int, sender_on: Callable[[FakeTransport], Sender]
) -> None:
    rng = random.Random(number)
    transport = FakeTransport(iter(lambda: rng.choice([None, 1, 2, 7, 100, 5000]), "never"))
    sender = sender_on(transport)
    send_everything(sender, chain.parts)
    assert bytes(transport.taken) == chain.answer
    assert sender.is_idle


@pytest.mark.parametrize("sender_on", SENDERS)
def test_parts_are_sent_in_order_one_byte_at_a_time(
    tmp_path: Path, sender_on: Callable[[FakeTransport], Sender]
) -> None:
    chain = chain_of(tmp_path / "segment", 5, 8)
    assert len(chain.answer) > COPIED_RANGE_BYTES, "one region is large"
    transport = FakeTransport(iter(lambda: 1, None))
    send_everything(sender_on(transport), chain.parts)
    assert bytes(transport.taken) == chain.answer
    answer = decode(FetchResponse, VERSION, transport.taken, FRAME_AND_HEADER_BYTES)
    found = {
        (topic.topic, partition.partition_index): read_regions(partition.records)
        for topic in answer.responses
        for partition in topic.partitions
    }
    assert found == chain.records


def test_small_regions_are_sent_together_and_large_ones_by_sendfile(tmp_path: Path) -> None:
    file = file_with(tmp_path / "segment", random.Random(1).randbytes(4 * COPIED_RANGE_BYTES))
    small, large = FileRegion(file, 5, COPIED_RANGE_BYTES), FileRegion(file, 9, COPIED_RANGE_BYTES + 1)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"a", small, b"b", small, b"c", large, b"d", small, b"e", small])
    assert transport.calls == ["send_all", "send_file", "send_all"]
    assert transport.by_sendfile == large.length


@pytest.mark.parametrize("end", [[], [b"end"]], ids=["at the end", "before bytes"])
def test_a_response_with_one_small_region_is_sent_by_one_call(tmp_path: Path, end: list[Part]) -> None:
    file = file_with(tmp_path / "segment", bytes(9))
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"a", FileRegion(file, 0, 9), *end])
    assert transport.calls == ["send_all"]


@pytest.mark.pure_python("a compiled class cannot be extended")
def test_one_call_copies_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """So a client that reads slowly costs little memory."""
    file = file_with(tmp_path / "segment", bytes(COPIED_RANGE_BYTES))
    reads: list[int] = []

    class CountingReadAhead(ReadAhead):
        @staticmethod
        def read_cached(file: HasFileno, spans: Sequence[Span], space: memoryview) -> tuple[int, int]:
            count, length = ReadAhead.read_cached(file, spans, space)
            reads.append(length)
            return count, length

    prefetcher = PageCachePrefetcher(NO_READS, lambda *_: None)
    sender = Sender(FakeTransport(cycle([1, None])), CountingReadAhead(prefetcher))
    assert not sender.send([FileRegion(file, 0, COPIED_RANGE_BYTES)] * 100)
    for _ in range(10):
        assert not sender.resume()
    assert sum(reads) <= COPIED_BYTES_PER_CALL + COPIED_RANGE_BYTES


def test_after_a_short_write_the_rest_is_tried_at_once(tmp_path: Path) -> None:
    """Until the socket takes nothing."""
    file = file_with(tmp_path / "segment", bytes(2 * LARGE))
    transport = FakeTransport(iter([1, 1, 2, None, LARGE]))
    sender = copying_sender(transport)
    assert not sender.send([b"ab", FileRegion(file, 0, LARGE)])
    assert transport.calls == ["send", "send", "send_file", "send_file"]
    assert sender.resume()


def calls_of_slow_reader(path: Path, plan: list[int | None], size: int) -> list[int]:
    """Sends a region to a receiver with this plan; the calls of sendfile in each turn."""
    transport = FakeTransport(iter(plan))
    sender = Sender(transport)
    calls = []
    done = sender.send([FileRegion(file_with(path, bytes(size)), 0, size)])
    while not done:
        calls.append(len(transport.calls))
        transport.calls.clear()
        done = sender.resume()
    return calls


def test_a_socket_that_is_always_full_after_a_short_write_is_seldom_tried_again(tmp_path: Path) -> None:
    tried = [1, None] * _MAX_VAIN_TRIES
    untried = [1] * (_SHORT_WRITES_PER_TRY - 1)
    plan = [*tried, *untried, 1, None, *untried, 1, None, 1 << 20]
    calls = calls_of_slow_reader(tmp_path / "segment", plan, 1 << 20)
    again = [1] * (_SHORT_WRITES_PER_TRY - 1) + [2]
    assert calls == [2] * _MAX_VAIN_TRIES + again * 2


def test_after_a_try_that_sends_something_each_short_write_is_tried_again(tmp_path: Path) -> None:
    untried = [1] * (_SHORT_WRITES_PER_TRY - 1)
    plan = [*([1, None] * _MAX_VAIN_TRIES), *untried, 1, 1, None, 1, None, 1 << 20]
    calls = calls_of_slow_reader(tmp_path / "segment", plan, 1 << 20)
    assert calls == [2] * _MAX_VAIN_TRIES + [1] * len(untried) + [3, 2]


def test_one_call_sends_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    file = file_with(tmp_path / "segment", bytes(5 * MAX_BYTES_PER_CALL))
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert send_everything(Sender(transport), [b"h", FileRegion(file, 0, 5 * MAX_BYTES_PER_CALL)]) == 5


@pytest.mark.parametrize(
    ("is_shared", "is_encrypted", "turns"), [(False, False, 3), (True, False, 10), (False, True, 10)]
)
def test_a_lone_connection_sends_more_of_a_long_region_in_one_call(
    tmp_path: Path, *, is_shared: bool, is_encrypted: bool, turns: int
) -> None:
    """Encrypting as much would take too long."""
    size = 2 * MAX_BYTES_ALONE + 2 * MAX_BYTES_PER_CALL
    file = file_with(tmp_path / "segment", bytes(size))
    transport = FakeTransport(iter(lambda: 2**30, None))
    if is_encrypted:
        transport.joins_regions = True
    asked: list[int] = []

    def is_loop_shared(since_ms: int) -> bool:
        asked.append(since_ms)
        return is_shared

    sender = Sender(transport, None, lambda: 5.0, is_loop_shared)
    assert send_everything(sender, [b"h", FileRegion(file, 0, size)]) == turns
    assert set(asked) == (set() if is_encrypted else {5000 - ALONE_MS})


def test_regions_that_one_call_sends_anyway_do_not_ask_for_other_connections(tmp_path: Path) -> None:
    file = file_with(tmp_path / "segment", bytes(MAX_BYTES_PER_CALL))
    asked: list[int] = []

    def is_loop_shared(since_ms: int) -> bool:
        asked.append(since_ms)
        return False

    sender = Sender(FakeTransport(repeat(2**30)), is_loop_shared=is_loop_shared)
    assert not sender.send([b"h", FileRegion(file, 0, MAX_BYTES_PER_CALL), b"t"])
    assert sender.resume()
    assert not asked


@pytest.mark.parametrize("sender_on", SENDERS)
def test_a_file_shorter_than_its_region_is_an_error(
    tmp_path: Path, sender_on: Callable[[FakeTransport], Sender]
) -> None:
    file = file_with(tmp_path / "segment", b"short")
    with pytest.raises(RegionEnded):
        send_everything(sender_on(FakeTransport(iter(lambda: 100, None))), [b"h", FileRegion(file, 0, 10)])


def scattered(file: File, spans: list[tuple[int, int]]) -> ScatteredRegion:
    return ScatteredRegion(file, spans, sum([length for _, length in spans]))


def evenly(file: File, count: int, length: int, gap: int) -> ScatteredRegion:
    return scattered(file, [(number * (length + gap), length) for number in range(count)])


def bytes_in(data: bytes, parts: list[Part]) -> bytes:
    """The bytes that a client gets, if all files have this content."""
    found = b""
    for part in parts:
        if isinstance(part, FileRegion | ScatteredRegion):
            found += b"".join([data[region.position :][: region.length] for region in file_regions([part])])
        else:
            found += part
    return found


@pytest.mark.parametrize("sender_on", SENDERS)
@pytest.mark.parametrize("seed", range(8))
def test_scattered_regions_are_sent_in_order(
    tmp_path: Path, seed: int, sender_on: Callable[[FakeTransport], Sender]
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    data = dice.randbytes(600_000)
    files = [file_with(tmp_path / name, data) for name in "ab"]
    parts: list[Part] = [b"head"]
    for _ in range(12):
        spans, position = [], dice.randrange(100_000)
        while position < 300_000 and dice.random() < 0.95:
            length = dice.choice((1, 70, 200, 5000, 16_384, COPIED_RANGE_BYTES, COPIED_RANGE_BYTES + 1))
            spans.append((position, length))
            position += length + dice.choice((0, 28, 28, MAX_GAP_BYTES, MAX_GAP_BYTES + 1, 60_000, -length - 3))
        some: Region = scattered(dice.choice(files), spans) if len(spans) > 1 else FileRegion(files[0], 7, 700)
        parts += [some, b"between"] if dice.random() < 0.7 else [some]
    transport = FakeTransport(iter(lambda: dice.choice((None, 1, 100, 30_000, 2**30)), 0))
    send_everything(sender_on(transport), parts)
    assert transport.taken == bytes_in(data, parts)


def test_the_ranges_of_a_scattered_region_are_copied_and_sent_together(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300 * 16_384)
    file = file_with(tmp_path / "log", data)
    region = evenly(file, 64, 16_384, 60_000)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"h", region, b"t"])
    assert len(transport.calls) == -(-64 * 16_384 // COPIED_BYTES_PER_CALL)
    assert transport.taken == bytes_in(data, [b"h", region, b"t"])
    assert not transport.by_sendfile


def test_what_the_socket_does_not_take_is_not_overwritten_by_other_connections(tmp_path: Path) -> None:
    """They read to the same memory."""
    data = random.Random(1).randbytes(500_000)
    file = file_with(tmp_path / "log", data)
    prefetcher = PageCachePrefetcher(NO_READS, lambda *_: None)
    region, other = evenly(file, 20, 5000, 10_000), scattered(file, [(3, 5000), (20_000, 6000), (40_000, 5000)])
    transport = FakeTransport(iter([7000, None, *repeat(2**30, 9)]))
    sender = Sender(transport, ReadAhead(prefetcher))
    assert not sender.send([b"h", region])
    assert Sender(FakeTransport(repeat(2**30)), ReadAhead(prefetcher)).send([b"o", other])
    send_everything(sender, [b"t"])
    assert transport.taken == bytes_in(data, [b"h", region, b"t"])


def test_a_slow_reader_of_a_scattered_region_costs_the_memory_of_one_call(tmp_path: Path) -> None:
    file = file_with(tmp_path / "log", bytes(5_000_000))
    sender = copying_sender(FakeTransport(cycle([1, None])))
    assert not sender.send([b"h", evenly(file, 64, 16_384, 60_000), b"t"])
    for _ in range(10):
        assert not sender.resume()
        kept = [part for part in sender._parts if not isinstance(part, ScatteredRegion)]
        assert sum(map(len, kept)) <= COPIED_BYTES_PER_CALL + len(b"ht")


def test_small_ranges_that_follow_each_other_are_one_read_and_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_with(tmp_path / "log", random.Random(1).randbytes(300 * 228))
    reads: list[int] = []
    preadv = os.preadv

    def counted(*args: Any) -> int:
        reads.append(preadv(*args))
        return reads[-1]

    monkeypatch.setattr(os, "preadv", counted)
    transport = FakeTransport(iter(lambda: 2**30, None))
    assert copying_sender(transport).send([b"h", evenly(file, 200, 200, 28), b"t"])
    assert len(reads) == 2
    assert len(transport.calls) == 1
    assert len(transport.taken) == 200 * 200 + 2


def test_without_a_read_that_does_not_wait_ranges_are_sent_by_sendfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(1).randbytes(10_000)
    file = file_with(tmp_path / "log", data)
    monkeypatch.setattr(PageCache, "read_resident_spans", lambda *_: (0, 0))
    transport = FakeTransport(iter(lambda: 2**30, None))
    parts: list[Part] = [b"h", evenly(file, 8, 200, 28), b"t"]
    assert copying_sender(transport).send(parts)
    assert transport.taken == bytes_in(data, parts)
    assert transport.by_sendfile == 8 * 200
