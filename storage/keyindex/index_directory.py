"""The key index files of one partition: which are valid, which to merge, and the merge.

RULES    1. The files are in the directory LogFiles.index_path; their ranges are consecutive. The first may begin below
            the log's start.
         2. A file inside of another one's range was merged into it, and is deleted. After a gap, or a damaged file, all further
            ones are deleted: the index is built again from there.
         3. Files of other fields are deleted, and those of another partition: one may be written while a topic is deleted and
            created again with the same directories.
         4. FAN files of a size class are merged, together with the smaller ones after them; a class is FAN times as large as
            the one before. So each class has few files, and an entry is written once for each class. A file of MAX_ENTRIES is
            not merged again.
         5. A merge leaves out entries below the log's start. It needs memory for a few pages of each file, so it has at most
            MAX_SOURCES: the first ones, if the merges are behind.
NOT HERE When (replication/partition/key_indexer.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from storage.io.disk import Disk
from storage.keyindex.entries import HASH_BYTES, OFFSET_END
from storage.keyindex.index_file import SUFFIX, UNFINISHED, DamagedIndex, IndexFile, IndexRange, IndexWriter

FAN: Final = 4
SMALL: Final = 4096
"""Entries of the largest file in the first size class."""
MAX_SOURCES: Final = 16
MAX_ENTRIES: Final = 1 << 27
_NAME: Final = re.compile(r"(\d{20})-(\d{20})" + re.escape(SUFFIX))


def load_ranges(disk: Disk, directory: str, digest: bytes) -> list[IndexRange]:
    """The valid ranges of a directory, ascending; all other index files are deleted (rules 2 and 3).

    Raises:
        StorageError: the disk failed, or the directory was removed.
    """
    names = disk.listdir(directory)
    valid: list[IndexRange] = []
    for name in covering(names):
        found = _range_of(disk, f"{directory}/{name}", digest)
        if found is None or (valid and found.start_offset != valid[-1].end_offset):
            break
        valid.append(found)
    keep = {found.file_name for found in valid}
    for name in names:
        if (name.endswith(SUFFIX) and name not in keep) or name.endswith(UNFINISHED):
            disk.unlink(f"{directory}/{name}", missing_ok=True)
    return valid


def covering(names: Sequence[str]) -> list[str]:
    """The names of index files without those inside of another one's range, in offset order."""
    found = sorted((int(match[1]), -int(match[2]), match[0]) for name in names if (match := _NAME.fullmatch(name)))
    kept: list[str] = []
    end_offset = -1
    for _, end, name in found:
        if -end > end_offset:
            kept.append(name)
            end_offset = -end
    return kept


def offsets_of(name: str) -> tuple[int, int]:
    """The first offset and the end offset in a file name."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1]), int(match[2])


def _range_of(disk: Disk, path: str, digest: bytes) -> IndexRange | None:
    try:
        return IndexFile(disk, path, digest).range
    except DamagedIndex:
        return None


def delete_ranges(disk: Disk, directory: str, ranges: Sequence[IndexRange]) -> None:
    """Delete the files of some ranges."""
    for known in ranges:
        disk.unlink(f"{directory}/{known.file_name}", missing_ok=True)


def due_merge(ranges: Sequence[IndexRange]) -> list[IndexRange]:
    """The neighbouring ranges to merge now; empty if there is nothing to do (rule 4)."""
    classes = [_size_class(found.entry_count) for found in ranges]
    for size_class in sorted(set(classes)):
        first = next((at + 1 for at in range(len(classes) - 1, -1, -1) if classes[at] > size_class), 0)
        newest = list(ranges[first : first + MAX_SOURCES])
        entries = sum(found.entry_count for found in newest)
        if classes[first:].count(size_class) >= FAN and entries <= MAX_ENTRIES:
            return newest
    return []


def _size_class(entry_count: int) -> int:
    size_class, limit = 0, SMALL
    while entry_count > limit:
        size_class, limit = size_class + 1, limit * FAN
    return size_class


def merge(
    disk: Disk, directory: str, digest: bytes, ranges: Sequence[IndexRange], log_start_offset: int
) -> Iterator[IndexRange | None]:
    """Merge neighbouring ranges in steps: yields None after each, and finally the new range, whose sources are deleted.

    Closing it before deletes what was written.

    Raises:
        DamagedIndex: of a source.
        StorageError: the disk is full or failed, or a file is missing.
    """
    assert all(first.end_offset == second.start_offset for first, second in pairwise(ranges)), ranges
    files = [IndexFile(disk, f"{directory}/{known.file_name}", digest) for known in ranges]
    lowest = log_start_offset.to_bytes(OFFSET_END - HASH_BYTES, "big")
    drops = ranges[0].start_offset < log_start_offset
    least = min(known.min_timestamp_ms for known in ranges)
    greatest = max(known.max_timestamp_ms for known in ranges)
    whole = IndexRange(ranges[0].start_offset, *ranges[-1][1:3], 0, least, greatest)
    with IndexWriter(disk, directory, ranges[0].start_offset) as writer:
        for entries in merged_pages([file.pages() for file in files]):
            writer.append([entry for entry in entries if entry[HASH_BYTES:OFFSET_END] >= lowest] if drops else entries)
            yield None
        found = writer.finish(whole, digest)
    delete_ranges(disk, directory, [known for known in ranges if known.file_name != found.file_name])
    yield found


def merged_pages(sources: Sequence[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """The entries of all sources in order; each source yields ascending lists."""
    buffers = [next(source, []) for source in sources]
    while any(buffers):
        bound = min(buffer[-1] for buffer in buffers if buffer)
        entries: list[bytes] = []
        for at, buffer in enumerate(buffers):
            end = bisect_right(buffer, bound)
            if end:
                entries += buffer[:end]
                buffers[at] = buffer[end:] or next(sources[at], [])
        entries.sort()
        yield entries
