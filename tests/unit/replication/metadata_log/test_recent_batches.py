"""The newest batches of the metadata log in memory."""

from __future__ import annotations

import pytest

from replication.metadata_log import recent_batches
from replication.metadata_log.recent_batches import RecentBatches
from tests.support.segments import batch


def test_a_read_begins_with_the_batch_of_the_offset_and_ends_before_the_limit() -> None:
    recent, data = RecentBatches(), [batch(5, 2, size=100), batch(7, 1, size=100), batch(8, 1, size=100)]
    recent.add(data[0] + data[1])
    recent.add(data[2])
    assert [offset for offset in range(4, 11) if recent.has(offset)] == [5, 6, 7, 8]
    assert recent.read(6, 1) == data[0]
    assert recent.read(6, 299) == data[0] + data[1]
    assert recent.read(7, 200) == data[1] + data[2]
    recent.clear()
    assert not recent.has(8)


def test_the_oldest_batches_leave_and_the_last_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_batches, "MAX_BYTES", 250)
    recent = RecentBatches()
    for offset in range(4):
        recent.add(batch(offset, size=100))
    assert [offset for offset in range(5) if recent.has(offset)] == [2, 3]
    recent.add(batch(4, size=400))
    assert [offset for offset in range(6) if recent.has(offset)] == [4]
