"""Indexes and segments compared with a plain list: a lookup equals a scan after any operations."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from protocol.records import headers
from storage.config.log_config import LogConfig
from storage.io.disk import Disk
from storage.io.disk_lookup import wait_for_disk
from storage.segments.indexes import OffsetIndex, TimeIndex
from storage.segments.segment_engine import SegmentEngine
from tests.support.segments import NOW_MS, append, batch, close_idle_files, read, write_out

GAPS = st.integers(1, 50)


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(GAPS, GAPS), min_size=1, max_size=40),
    repeat=st.integers(1, 60),
    base=st.sampled_from([0, 7, 2**40]),
    cut=st.floats(0, 1),
    data=st.data(),
)
def test_a_lookup_is_what_a_scan_finds(
    steps: list[tuple[int, int]], repeat: int, base: int, cut: float, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index = OffsetIndex(Disk(), f"{directory}/index", base)
        offset, position = base, 0
        entries: list[tuple[int, int]] = []
        for offsets, positions in steps * repeat:
            offset, position = offset + offsets, position + positions
            index.append(offset, position)
            entries.append((offset, position))
            if index.is_behind:
                write_out(index)
        for target in data.draw(st.lists(st.integers(base, offset), max_size=5), label="targets before a truncation"):
            assert index.lookup(target) == max([(base, 0), *[entry for entry in entries if entry[0] <= target]])
        if data.draw(st.booleans(), label="truncated"):
            limit = base + int((offset + 2 - base) * cut)
            index.truncate(limit)
            entries = [entry for entry in entries if entry[0] < limit]
        if data.draw(st.booleans(), label="opened again"):
            write_out(index)
            index = OffsetIndex(Disk(), index.path, base)
        assert index.entries == len(entries)
        assert index.last == (entries[-1] if entries else (base, 0))
        for target in data.draw(st.lists(st.integers(base - 1, offset + 2), max_size=30), label="targets"):
            slot = bisect_right(entries, (target, 2**62)) - 1
            assert index.lookup(target) == (entries[slot] if slot >= 0 else (base, 0))
        for target in data.draw(st.lists(st.integers(0, position + 2), max_size=30), label="positions"):
            behind = [found for found, at in entries if at >= target]
            assert index.offset_at_or_after(target) == (behind[0] if behind else None)


@settings(max_examples=60)
@given(
    times=st.lists(st.integers(-1, 2**45), min_size=1, max_size=60),
    repeat=st.integers(1, 30),
    targets=st.lists(st.integers(-1, 2**45 + 2**40), max_size=30),
)
def test_a_time_lookup_is_what_a_scan_finds(times: list[int], repeat: int, targets: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        index = TimeIndex(Disk(), f"{directory}/index", 100)
        entries: list[tuple[int, int]] = []
        greatest = -1
        for number in range(len(times) * repeat):
            time = times[number % len(times)] + (number // len(times) << 35)
            index.append(time, 100 + number)
            if index.is_behind:
                write_out(index)
            if time > greatest:
                greatest = time
                entries.append((time, 100 + number))
        assert index.entries == len(entries)
        for target in targets:
            slot = bisect_right(entries, (target, 2**62)) - 1
            assert index.lookup(target) == (entries[slot] if slot >= 0 else (-1, 100))


class EngineAgainstList(RuleBasedStateMachine):
    """The segment engine and a list of batches under the same operations."""

    @initialize(
        segment_bytes=st.integers(300, 3000),
        interval=st.sampled_from([0, 150, 1000, 10**6]),
        index_bytes=st.sampled_from([48, 10**7]),
        is_compacted=st.booleans(),
    )
    def begin(self, segment_bytes: int, interval: int, index_bytes: int, is_compacted: bool) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=index_bytes,
            segment_ms=500,
            cleanup_policy=frozenset({"compact" if is_compacted else "delete"}),
        )
        self.engine = SegmentEngine(Disk(), self.temporary.name, self.config)
        self.engine.compacted_end = 10**9  # the gaps are a compaction's
        assert self.engine.open(None) is None
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = self.end = 0

    @rule(
        gap=st.sampled_from([0, 0, 0, 3]),
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
        time=st.integers(0, 900),
    )
    def append(self, gap: int, counts: list[int], time: int) -> None:
        data = b""
        offset = self.end + (gap if self.config.is_compacted else 0)
        for number, count in enumerate(counts):
            part = batch(offset, count, timestamp_ms=NOW_MS + time + number)
            self.batches.append((offset, offset + count - 1, part))
            data += part
            offset += count
        append(self.engine, data)
        self.end = offset

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + round((self.end - self.start) * share)
        held = [base for base, last, _ in self.batches if base <= offset <= last]
        self.batches = [entry for entry in self.batches if entry[1] < offset]
        self.engine.truncate(offset)
        self.end = min([offset, *held])

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        for path in self.engine.trim(self.start + round((self.end - self.start) * share)):
            Path(path).unlink()
        self.start = self.engine.start_offset
        self.batches = [entry for entry in self.batches if entry[0] >= self.start]

    @rule()
    def roll(self) -> None:
        self.engine.roll(NOW_MS)

    @rule()
    def close_idle_files(self) -> None:
        close_idle_files(self.engine)

    @rule(clean=st.booleans(), share=st.floats(0, 1))
    def stop(self, clean: bool, share: float) -> None:
        """Stop, cleanly or not, and restart."""
        end = self.engine.end_offset
        if clean:
            self.engine.close()
        self.engine = SegmentEngine(Disk(), self.temporary.name, self.config)
        self.engine.compacted_end = 10**9  # the gaps are a compaction's
        start = self.engine.open(None if clean else self.start + round((end - self.start) * share))
        assert (start is None) or not clean
        if start is not None:
            self.engine.recover(start, lambda *_: None)
        # A gap at the end is not on disk.
        last = self.batches[-1][1] + 1 if self.batches else self.start
        self.end = max(last, self.engine.segments()[-1].base_offset)

    @rule(share=st.floats(0, 1), limit=st.floats(0, 1), max_bytes=st.integers(0, 2000))
    def locate(self, share: float, limit: float, max_bytes: int) -> None:
        offset = self.start + round((self.end - self.start) * share)
        max_offset = offset + round((self.end - offset) * limit)
        data = read(self.engine, offset, max_bytes, max_offset)
        expected = [part for _, last, part in self.batches if offset <= last < max_offset]
        assert b"".join(expected).startswith(data)
        if expected:
            assert len(data) >= len(expected[0])

    @rule(after_ms=st.integers(-10, 1000), share=st.floats(0, 1))
    def find_timestamp(self, after_ms: int, share: float) -> None:
        offset = self.start + round((self.end - self.start) * share)
        found = (
            base
            for base, last, part in self.batches
            if last >= offset and headers(part)[0][1].max_timestamp >= NOW_MS + after_ms
        )
        assert self.engine.view().find_timestamp(NOW_MS + after_ms, offset) == next(found, None)

    @invariant()
    def ends_agree(self) -> None:
        assert (self.engine.start_offset, self.engine.end_offset) == (self.start, self.end)
        assert self.engine.size_bytes == sum(len(part) for _, _, part in self.batches)

    def teardown(self) -> None:
        offset, data = self.start, b""
        while offset < self.end:
            located = wait_for_disk(self.engine.locate, offset, 10**9, self.end, min_one_batch=True)
            if not located.size:
                break
            part = read(self.engine, offset)
            data += part
            offset = headers(part)[-1][1].next_offset
        assert data == b"".join(part for _, _, part in self.batches)
        self.temporary.cleanup()


TestEngineAgainstList = EngineAgainstList.TestCase
TestEngineAgainstList.settings = settings(max_examples=60, stateful_step_count=30)
