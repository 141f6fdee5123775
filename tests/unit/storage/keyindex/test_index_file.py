"""Files of a key index: look-ups, damage, merges, which files are valid."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.io.disk import Disk, File
from storage.io.page_cache import Span
from storage.keyindex.entries import entry_offset, entry_seconds, field_hash, new_entry, upper_bound
from storage.keyindex.index_directory import FAN, MAX_ENTRIES, MAX_SOURCES, due_merge, load_ranges, merge
from storage.keyindex.index_file import (
    PAGE_BYTES,
    SUFFIX,
    UNFINISHED,
    DamagedIndex,
    IndexFile,
    IndexRange,
    IndexWriter,
    digest_of,
)
from storage.keyindex.index_jobs import FindOffsets, IndexJobs

TOPIC = b"t" * 16
DIGEST = digest_of(TOPIC, 0, ("key",))
EVERYWHERE = 1 << 50


def write(path: Path, keys: list[bytes], start: int = 0, digest: bytes = DIGEST) -> IndexRange:
    """A file of records with these keys from an offset on."""
    entries = sorted(new_entry(field_hash("key", key), start + at, 1000 * (start + at)) for at, key in enumerate(keys))
    writer = IndexWriter(Disk(), str(path), start)
    writer.append(entries)
    end = start + len(keys)
    return writer.finish(IndexRange(start, end, 1, 0, 1000 * start, 1000 * (end - 1)), digest)


def offsets(path: Path, written: IndexRange, key: bytes, before: int = EVERYWHERE) -> list[int]:
    file = IndexFile(Disk(), f"{path}/{written.file_name}", DIGEST)
    assert file.range == written
    return found_in(file, key, before)


def found_in(file: IndexFile, key: bytes, before: int = EVERYWHERE) -> list[int]:
    upper = upper_bound(field_hash("key", key), before)
    return [entry_offset(entry) for entry in file.find(upper, file.locate(upper))]


def all_offsets(path: Path, written: IndexRange, keys: list[bytes]) -> list[list[int]]:
    return [offsets(path, written, key) for key in keys]


def test_an_entry_keeps_offset_and_seconds() -> None:
    entry = new_entry(field_hash("key", b"k"), (1 << 56) - 1, 1_700_000_000_999)
    assert (entry_offset(entry), entry_seconds(entry)) == ((1 << 56) - 1, 1_700_000_000)
    assert entry_seconds(new_entry(b"12345", 7, -1)) == 0
    assert entry_seconds(new_entry(b"12345", 7, 1 << 62)) == 0xFFFF_FFFF
    assert field_hash("header:a", b"k") != field_hash("key", b"k")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 5000, 200_000])
def test_every_key_is_found_with_its_offsets_newest_first(tmp_path: Path, count: int) -> None:
    keys = [b"%d" % (at % 1000) if at % 3 else b"hot" for at in range(count)]
    written = write(tmp_path, keys)
    for key in {b"hot", *random.Random(count).sample(keys, min(count, 20))}:
        assert offsets(tmp_path, written, key) == [at for at in range(count - 1, -1, -1) if keys[at] == key]
        middle = count // 2
        assert offsets(tmp_path, written, key, middle) == [at for at in range(middle - 1, -1, -1) if keys[at] == key]
    assert offsets(tmp_path, written, b"absent") == []


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_search_among_distinct_keys_reads_one_place_of_an_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    keys = [b"%d" % at for at in range(count)]
    file = IndexFile(Disk(), f"{tmp_path}/{write(tmp_path, keys).file_name}", DIGEST)
    reads: list[Span] = []
    pread = File.pread

    def counted(self: File, length: int, position: int) -> bytes:
        reads.append((position, length))
        return pread(self, length, position)

    monkeypatch.setattr(File, "pread", counted)
    sampled = random.Random(1).sample(range(len(keys)), 300)
    other_places = 0
    for at in sampled:
        reads.clear()
        assert found_in(file, keys[at]) == [at]
        (begin, length), *others = reads
        assert length <= 5 * PAGE_BYTES
        other_places += sum(not begin <= position < begin + length for position, _ in others)
    assert other_places <= 0.02 * len(sampled)


def test_a_search_announces_the_pages_of_all_files_before_it_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 1000, 2000):
        write(tmp_path, [b"%d" % at for at in range(1000)], start)
    job = FindOffsets(str(tmp_path), DIGEST, "key", b"7", 0, 3000, 0, EVERYWHERE, 10)
    jobs = IndexJobs(Disk())
    assert jobs.run(job) == [2007, 1007, 7]
    calls: list[tuple[str, str]] = []
    pread, announce = File.pread, File.announce_reads

    def reading(self: File, length: int, position: int) -> bytes:
        calls.append(("read", self.path))
        return pread(self, length, position)

    def announcing(self: File, spans: Sequence[Span]) -> None:
        calls.append(("announce", self.path))
        announce(self, spans)

    monkeypatch.setattr(File, "pread", reading)
    monkeypatch.setattr(File, "announce_reads", announcing)
    jobs.run(job)
    assert [name for name, _ in calls] == ["announce"] * 3 + ["read"] * 6
    assert [path for _, path in calls[:3]] == [path for _, path in calls[-3:]]
    assert len(set(calls)) == 6


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    keys = [b"hot"] * 6000 + [b"%d" % at for at in range(600)]  # uneven, so that fences are read
    written = write(tmp_path, keys)
    path = f"{tmp_path}/{written.file_name}"
    for at in random.Random(1).sample(range(os.path.getsize(path)), 200):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))
            file.flush()
            with pytest.raises(DamagedIndex):
                all_offsets(tmp_path, written, list(dict.fromkeys(keys)))
            file.seek(at)
            file.write(byte)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 1)
    with pytest.raises(DamagedIndex):
        offsets(tmp_path, written, keys[0])


def test_a_merge_has_the_entries_of_its_sources_above_the_logs_start(tmp_path: Path) -> None:
    rng = random.Random(1)
    parts: list[IndexRange] = []
    keys: list[bytes] = []
    for _ in range(5):
        some = [rng.choice([b"hot", b"%d" % rng.randrange(50)]) for _ in range(rng.randrange(3000))]
        parts.append(write(tmp_path, some, len(keys)))
        keys += some
    *steps, merged = merge(Disk(), str(tmp_path), DIGEST, parts, 1000)
    assert merged is not None
    assert steps == [None] * len(steps)
    assert merged[:3] == (0, len(keys), 1)
    assert merged[4:] == (0, 1000 * (len(keys) - 1))
    assert os.listdir(tmp_path) == [merged.file_name]
    for key in (b"hot", b"7"):
        assert offsets(tmp_path, merged, key) == [at for at in range(len(keys) - 1, 999, -1) if keys[at] == key]


def test_files_after_a_gap_or_a_damaged_one_are_deleted(tmp_path: Path) -> None:
    first, second, third = (write(tmp_path, [b"k"] * 10, start) for start in (0, 10, 20))
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == [first, second, third]
    with open(f"{tmp_path}/{second.file_name}", "r+b") as file:
        file.write(b"????")
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == [first]
    assert os.listdir(tmp_path) == [first.file_name]
    write(tmp_path, [b"k"] * 10, 20)
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == [first]


def test_what_a_crash_leaves_is_deleted(tmp_path: Path) -> None:
    """After the rename of a merge its sources may remain, before it the unfinished file."""
    (tmp_path / f"{0:020d}{UNFINISHED}").write_bytes(b"")
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    merged = write(tmp_path, [b"k"] * 20)
    for start in (0, 10):
        write(tmp_path, [b"k"] * 10, start)
    last = write(tmp_path, [b"k"] * 10, 20)
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == [merged, last]
    assert sorted(os.listdir(tmp_path)) == sorted([merged.file_name, last.file_name, "00000000000000000000.log"])


def test_an_index_of_other_fields_is_deleted(tmp_path: Path) -> None:
    write(tmp_path, [b"k"] * 10, digest=digest_of(TOPIC, 0, ("key", "header:a")))
    assert load_ranges(Disk(), str(tmp_path), digest_of(TOPIC, 0, ("header:a", "key")))
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == []
    assert not [name for name in os.listdir(tmp_path) if name.endswith(SUFFIX)]


def test_an_index_of_an_earlier_topic_with_the_same_name_is_deleted(tmp_path: Path) -> None:
    """A job may write it after the new topic's directory was created."""
    write(tmp_path, [b"k"] * 10, digest=digest_of(b"u" * 16, 0, ("key",)))
    assert load_ranges(Disk(), str(tmp_path), DIGEST) == []
    assert os.listdir(tmp_path) == []


def test_merges_bound_the_number_of_files_and_how_often_an_entry_is_written() -> None:
    ranges: list[IndexRange] = []
    written = total = longest = 0
    while total < 100_000_000:
        ranges.append(IndexRange(total, total + 200_000, 1, 200_000, 0, 0))
        total += 200_000
        written += 200_000
        while due := due_merge(ranges):
            size = sum(one.entry_count for one in due)
            written += size
            at = ranges.index(due[0])
            ranges[at : at + len(due)] = [IndexRange(due[0].start_offset, due[-1].end_offset, 1, size, 0, 0)]
        longest = max(longest, len(ranges))
    assert longest <= 5 * (FAN - 1)  # from 200,000 entries on
    assert written <= 6 * total
    full = [IndexRange(at, at + 1, 1, MAX_ENTRIES, 0, 0) for at in range(20)]
    assert due_merge(full) == []


def test_merges_that_are_behind_have_a_bounded_number_of_sources() -> None:
    ranges = [IndexRange(at, at + 1, 1, 200_000, 0, 0) for at in range(200)]
    assert due_merge(ranges) == ranges[:MAX_SOURCES]
