"""The table of keys: what was put is found, in the memory that was given."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from storage.compaction.offset_map import NOT_FOUND, SLOT_BYTES, OffsetMap


@pytest.mark.parametrize("load_factor", [0.5, 0.9, 1.0])
def test_finds_what_was_put_last(load_factor: float) -> None:
    """Against a dict, filled up to its load factor."""
    table = OffsetMap(1 << 20, load_factor, 1000)
    rng, model = Random(1), {}
    for offset in range(4000):
        key = str(rng.randrange(int(table.slots * load_factor))).encode()
        table.put(key, offset)
        model[key] = offset
    assert table.size == len(model)
    assert {key: table.get(key) for key in model} == model
    assert table.latest_offset == 3999


def test_a_key_that_was_never_put_is_not_found() -> None:
    """Also in a table that is nearly full."""
    table = OffsetMap(1 << 16, 0.9, 10_000)
    number = 0
    while not table.is_full:
        table.put(b"%d" % number, number)
        number += 1
    assert table.get(b"other") == NOT_FOUND
    assert table.utilization == pytest.approx(0.9, abs=0.01)


def test_empty_and_long_keys_are_keys() -> None:
    """Rule 1: the length of a key costs nothing."""
    table = OffsetMap(1 << 16, 0.9, 10)
    table.put(b"", 1)
    table.put(b"x" * 100_000, 2)
    assert (table.get(b""), table.get(b"x" * 100_000), table.get(b"x")) == (1, 2, NOT_FOUND)


def test_takes_no_more_memory_than_it_may() -> None:
    """Rule 2: 24 bytes a slot, and nothing else that grows."""
    memory_bytes = 1 << 20
    tracemalloc.start()
    table = OffsetMap(memory_bytes, 0.9, 1 << 40)
    while not table.is_full:
        table.put(b"%d" % table.size, table.size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.size > 0.89 * memory_bytes / SLOT_BYTES
    assert peak < memory_bytes + 20_000


def test_is_no_larger_than_twice_what_can_come() -> None:
    """Rule 2: a log of few records costs a small table."""
    assert OffsetMap(1 << 30, 0.9, 100).slots <= 200
