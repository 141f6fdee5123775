"""The jobs of a key index process (storage/keyindex/index_jobs.py)."""

from __future__ import annotations

import random

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from storage.io.disk import Disk
from storage.keyindex.entries import size_of
from storage.keyindex.index_jobs import IndexJobs, MatchRecords
from tests.support.seeds import seed_of

ALL_TIMES = (0, 1 << 62)


def batch(base_offset: int, *sizes: int) -> bytes:
    builder = BatchBuilder(base_offset, compression=Compression.GZIP)
    for size in sizes:
        builder.append(1, b"k", bytes(size))
    return bytes(builder.build())


def match(batches: list[bytes], max_bytes: int) -> list[tuple[int, int]]:
    """Offset and size of the result."""
    offsets = frozenset(range(1000))
    found = IndexJobs(Disk()).run(MatchRecords(tuple(batches), offsets, (), "key", b"k", *ALL_TIMES, max_bytes))
    assert isinstance(found, list)
    return [(record.offset, size_of(record)) for record in found]


@pytest.mark.parametrize("seed", range(20))
def test_the_result_of_a_comparison_is_bounded_and_ends_above_the_limit_if_it_is_cut(seed: int) -> None:
    seed += seed_of()
    print(f"seed {seed}")
    rng = random.Random(seed)
    sizes = [[rng.choice((0, 5, 50)) for _ in range(rng.randrange(1, 9))] for _ in range(4)]
    batches: list[bytes] = []
    every: list[tuple[int, int]] = []
    base = 0
    for group in sizes:
        batches.insert(0, batch(base, *group))
        every += [(base + number, size + 1) for number, size in enumerate(group)]
        base += len(group)
    every.reverse()
    max_bytes = rng.choice((1, 20, 60, 200, 10_000))
    found = match(batches, max_bytes)
    assert found == every[: len(found)]
    if len(found) < len(every):
        assert len(found) > 1
        assert sum(size for _, size in found) > max_bytes
    assert len(found) <= 2 or sum(size for _, size in found[:-1]) <= max_bytes
