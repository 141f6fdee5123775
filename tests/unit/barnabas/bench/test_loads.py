"""The values of the loads."""

from __future__ import annotations

import pytest

from barnabas.bench.loads import PAYLOAD_BYTES, PAYLOADS, _values


@pytest.mark.parametrize("size", [1, 7, 1024, 1 << 20, 3_000_001, PAYLOAD_BYTES + 1])
def test_values_have_the_size_and_take_little_memory(size: int) -> None:
    """A thousand values of 3 MB took 3 GB."""
    values = _values(size)
    assert {len(value) for value in values} == {size}
    assert 1 <= len(values) <= PAYLOADS
    assert len(values) * size <= max(PAYLOAD_BYTES, size)
