"""Sending a chain of parts over a wire that takes what it likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker.network.sender import TURN_BYTES, RegionEnded, Sender
from protocol.records import FileRegion


class FakeWire:
    """Takes the next count of bytes from a plan; None is: would block."""

    def __init__(self, plan) -> None:
        self.plan = plan
        self.taken = bytearray()
        self.read_by_process = 0

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


@pytest.fixture
def chain(tmp_path: Path):
    """Parts of every kind for 50 topics, and the bytes that they stand for."""
    path = tmp_path / "segment"
    path.write_bytes(random.Random(1).randbytes(50_000))
    file = path.open("rb")
    data = path.read_bytes()
    parts, expected = [], b""
    rng = random.Random(2)
    for topic in range(50):
        header = f"topic {topic} ".encode()
        parts += [header, memoryview(b"partition ")]
        expected += header + b"partition "
        position, length = rng.randrange(49_000), rng.randrange(1000)
        parts.append(FileRegion(file, position, length))
        expected += data[position : position + length]
    yield parts, expected
    file.close()


@pytest.mark.parametrize("number", range(20))
def test_headers_and_regions_leave_in_order_over_partial_writes_of_random_size(chain, number: int) -> None:
    """seeds.md Z2: the order of the parts survives every cut; the seed is the parameter."""
    parts, expected = chain
    rng = random.Random(number)
    wire = FakeWire(iter(lambda: rng.choice([None, 1, 2, 7, 100, 5000]), "never"))
    sender = Sender(wire)
    send_everything(sender, parts)
    assert bytes(wire.taken) == expected
    assert sender.is_idle
    assert sender.bytes_sent == len(expected)


def test_the_one_byte_wire_carries_the_same_response(chain) -> None:
    """seeds.md Z2, design D5: a wire that moves one byte at a time."""
    parts, expected = chain
    wire = FakeWire(iter(lambda: 1, None))
    send_everything(Sender(wire), parts)
    assert bytes(wire.taken) == expected


def test_one_turn_does_not_own_the_loop(tmp_path: Path) -> None:
    """design D5: a large region goes in turns of a bounded size."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(5 * TURN_BYTES))
    with path.open("rb") as file:
        wire = FakeWire(iter(lambda: 2**30, None))
        assert send_everything(Sender(wire), [b"h", FileRegion(file, 0, 5 * TURN_BYTES)]) == 5 + 1


def test_a_file_that_ends_before_its_region_ends_the_connection(tmp_path: Path) -> None:
    """The promised length can not be kept, so the peer must not wait for it."""
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    with path.open("rb") as file, pytest.raises(RegionEnded):
        send_everything(Sender(FakeWire(iter(lambda: 100, None))), [b"h", FileRegion(file, 0, 10)])
