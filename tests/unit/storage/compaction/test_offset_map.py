"""The offset map (storage/compaction/offset_map.py)."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from storage.compaction.offset_map import NOT_FOUND, SLOT_BYTES, OffsetMap


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
def test_get_returns_the_last_offset_put(load_factor: float) -> None:
    table = OffsetMap(1 << 20, load_factor, 1000)
    rng, model = Random(1), {}
    for offset in range(4000):
        key = str(rng.randrange(int(table.slots * load_factor))).encode()
        table.put(key, offset)
        model[key] = offset
    assert table.size == len(model)
    assert {key: table.get(key) for key in model} == model
    assert table.latest_offset == 3999


def test_an_unknown_key_is_not_found() -> None:
    table = OffsetMap(1 << 16, 0.9, 10_000)
    number = 0
    while not table.is_full:
        table.put(b"%d" % number, number)
        number += 1
    assert table.get(b"other") == NOT_FOUND
    assert table.utilization == pytest.approx(0.9, abs=0.01)


def test_empty_and_long_keys_are_supported() -> None:
    table = OffsetMap(1 << 16, 0.9, 10)
    table.put(b"", 1)
    table.put(b"x" * 100_000, 2)
    assert (table.get(b""), table.get(b"x" * 100_000), table.get(b"x")) == (1, 2, NOT_FOUND)


def test_a_slot_takes_24_bytes() -> None:
    memory_bytes = 1 << 20
    tracemalloc.start()
    table = OffsetMap(memory_bytes, 0.9, 1 << 40)
    while not table.is_full:
        table.put(b"%d" % table.size, table.size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.size > 0.89 * memory_bytes / SLOT_BYTES
    assert peak < memory_bytes + 20_000


def test_the_table_has_at_most_twice_the_expected_keys() -> None:
    assert OffsetMap(1 << 30, 0.9, 100).slots <= 200
