"""One file of a key index: sorted entries in pages, with two levels of fences above them.

FORMAT   `<first offset, 20 digits>-<end offset, 20 digits>.keyindex`, in pages of 4 KiB; numbers are big-endian
             page 0      the header, see _HEADER; its CRC is that of the rest of the page
             entries     pages of CRC-32 and up to 255 entries, all full but the last
             fences      pages of CRC-32 and up to 340 fences: hash and offset of the first entry of each page of entries
             root        CRC-32, and the first fence of each page of fences
RULES    1. A file never changes. It is written under a temporary name, synced and renamed: under its own name it is complete.
         2. It has the entries of all records from its first offset to its end, except records below the log's start, and
            others that were removed from the log since.
         3. Header and root are read when it is opened: 14 KiB for 10^8 entries. Hashes are spread evenly, so a search
            interpolates between two fences of the root and reads five neighbouring pages of entries at once, and earlier
            pages if the hash continues there. If the place is not in the five, because some hashes have many entries, it
            reads the page of fences. The five are announced: a search in several files waits for the disk once.
         4. A page with a wrong CRC raises DamagedIndex.
NOT HERE What an entry means (entries.py), which files a partition has (index_directory.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple, Self
from zlib import crc32

from storage.io.disk import Disk, File, StorageError
from storage.keyindex.entries import ENTRY_BYTES, HASH_BYTES, OFFSET_END

SUFFIX: Final = ".keyindex"
UNFINISHED: Final = ".keyindex.new"
PAGE_BYTES: Final = 4096
_CRC: Final = Struct(">I")
_ENTRIES: Final = (PAGE_BYTES - _CRC.size) // ENTRY_BYTES
_FENCES: Final = (PAGE_BYTES - _CRC.size) // OFFSET_END
_HEADER: Final = Struct(">4sQIIqqiqq8s")
"""Magic, entries, pages of entries, pages of fences, first offset, end offset, leader epoch of the last batch, least and
greatest timestamp in ms, digest of the partition and the indexed fields."""
_MAGIC: Final = b"BKI1"
_PAGES_AT_A_TIME: Final = 64
_PAGES_AROUND: Final = 2
"""Read before and after an interpolated page. With distinct keys the place of an entry among the 86,700 below a page of fences
has a standard deviation of at most 147 entries, 0.58 pages."""


class DamagedIndex(Exception):
    """A file has not the contents that were written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.file_name = path.rpartition("/")[2]


class IndexRange(NamedTuple):
    """A part of the log, and the entries of its file."""

    start_offset: int
    end_offset: int
    leader_epoch: int
    """Of the batch before `end_offset`: a log with the same one there has the same records below (Raft's log matching)."""
    entry_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    """NO_TIMESTAMPS without entries (entries.py)."""

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.start_offset:020d}-{self.end_offset:020d}{SUFFIX}"


def digest_of(topic_id: bytes, partition: int, fields: Sequence[str]) -> bytes:
    """Identifies the partition and the indexed fields, whatever their order; 8 bytes."""
    names = "\0".join(sorted(set(fields))).encode("utf-8", "surrogateescape")
    return blake2b(topic_id + partition.to_bytes(4, "big") + names, digest_size=8).digest()


class IndexWriter:
    """Writes one file; the caller passes ascending entries. An unfinished file is deleted at the end of the `with`.

    Raises:
        StorageError: the disk is full or failed, or the directory was removed.
    """

    def __init__(self, disk: Disk, directory: str, start_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{start_offset:020d}{UNFINISHED}"
        disk.unlink(self._path, missing_ok=True)
        self._file = disk.open(self._path, write=True, create=True)
        self._position = PAGE_BYTES
        self._rest: list[bytes] = []
        self._fences: list[bytes] = []
        self._entry_count = 0
        self._is_finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            self._file.close()
            with suppress(StorageError):  # the next start deletes it
                self._disk.unlink(self._path, missing_ok=True)

    def append(self, entries: list[bytes]) -> None:
        """Write the full pages; the rest waits for the next call."""
        self._rest += entries
        full = len(self._rest) // _ENTRIES * _ENTRIES
        if full:
            self._write(self._rest[:full], _ENTRIES)
            self._rest = self._rest[full:]

    def finish(self, found: IndexRange, digest: bytes) -> IndexRange:
        """Make the file durable under its name; returns the range with the number of entries. `digest`: of `digest_of`."""
        self._write(self._rest, _ENTRIES)
        fences, self._fences = self._fences, []
        entry_count, entry_pages = self._entry_count, len(fences)
        self._write(fences, _FENCES)
        root, fence_pages = self._fences, len(self._fences)
        body = b"".join(root)
        self._file.pwrite(_CRC.pack(crc32(body)) + body, self._position)
        head = _HEADER.pack(_MAGIC, entry_count, entry_pages, fence_pages, *found[:3], *found[4:], digest)
        self._file.pwrite(_page(head), 0)
        self._file.sync()
        self._file.close()
        found = found._replace(entry_count=entry_count)
        self._disk.rename(self._path, f"{self._directory}/{found.file_name}")
        self._is_finished = True
        self._disk.sync_dir(self._directory)
        return found

    def _write(self, items: list[bytes], per_page: int) -> None:
        """Write pages of entries or fences, and remember the fence of each."""
        pages = []
        for at in range(0, len(items), per_page):
            self._fences.append(items[at][:OFFSET_END])
            pages.append(_page(b"".join(items[at : at + per_page])))
        self._file.pwrite(b"".join(pages), self._position)
        self._position += PAGE_BYTES * len(pages)
        self._entry_count += len(items)


def _page(content: bytes) -> bytes:
    content = content.ljust(PAGE_BYTES - _CRC.size, b"\0")
    return _CRC.pack(crc32(content)) + content


class IndexFile:
    """A file that is open for searches.

    Raises:
        DamagedIndex: header or root are damaged, or it is the file of another partition, of other fields or offsets.
        StorageError: the file is missing or unreadable.
    """

    def __init__(self, disk: Disk, path: str, digest: bytes) -> None:
        self._file: File = disk.open(path, write=False)
        head = self._read_pages(0, 1)[0]
        magic, entry_count, entry_pages, fence_pages, start, end, epoch, least, greatest, found = _HEADER.unpack_from(
            head
        )
        if magic != _MAGIC:
            raise DamagedIndex(path, "has a damaged header")
        self.range = IndexRange(start, end, epoch, entry_count, least, greatest)
        if found != digest or not path.endswith(f"/{self.range.file_name}"):
            raise DamagedIndex(path, "belongs to another partition, to other fields or offsets")
        self._entry_pages = entry_pages
        length = _CRC.size + fence_pages * OFFSET_END
        root = self._file.pread(length, PAGE_BYTES * (1 + entry_pages + fence_pages))
        if len(root) < length or _CRC.unpack_from(root)[0] != crc32(root[_CRC.size :]):
            raise DamagedIndex(path, "has a damaged root")
        self._root = _split(root[_CRC.size :], OFFSET_END)

    def announce(self, upper: bytes) -> None:
        """Begin to read the pages that `locate` needs, if hashes are spread evenly."""
        slot = bisect_left(self._root, upper) - 1
        if slot >= 0:
            self._announce_pages(self._interpolate(upper, slot))

    def locate(self, upper: bytes) -> int:
        """The last page of entries whose first entry is below `upper`; -1 if there is none. It has been read, or is being read.

        Raises:
            DamagedIndex, StorageError: as above.
        """
        slot = bisect_left(self._root, upper) - 1
        if slot < 0:
            return -1
        number = self._locate_nearby(upper, self._interpolate(upper, slot))
        return self._locate_by_fences(upper, slot) if number is None else number

    def find(self, upper: bytes, number: int) -> Iterator[bytes]:
        """The entries below `upper` with its hash, the highest offset first; `number` is what `locate` returned.

        Raises:
            DamagedIndex, StorageError: as above.
        """
        hashed = upper[:HASH_BYTES]
        while number >= 0:
            entries = self._entries(number)
            for at in range(bisect_left(entries, upper) - 1, -1, -1):
                if not entries[at].startswith(hashed):
                    return
                yield entries[at]
            number -= 1

    def pages(self) -> Iterator[list[bytes]]:
        """All entries in order, for a merge."""
        for number in range(0, self._entry_pages, _PAGES_AT_A_TIME):
            found: list[bytes] = []
            numbers = range(number, min(number + _PAGES_AT_A_TIME, self._entry_pages))
            for at, page in zip(numbers, self._read_entry_pages(numbers), strict=True):
                found += self._parse(page, at)
            yield found

    def _interpolate(self, upper: bytes, slot: int) -> range:
        """The pages of entries around the place of `upper` below a page of fences, if the hashes there are spread evenly."""
        pages = self._below(slot)
        low, high = _hash_of(self._root[slot]), 1 << 8 * HASH_BYTES
        if slot + 1 < len(self._root):
            high = _hash_of(self._root[slot + 1])
        number = pages.start + len(pages) * (_hash_of(upper) - low) // max(1, high - low)
        return range(max(pages.start, number - _PAGES_AROUND), min(pages.stop, number + _PAGES_AROUND + 1))

    def _locate_nearby(self, upper: bytes, numbers: range) -> int | None:
        """As `locate`, if the page is one of these; else None."""
        pages = self._read_entry_pages(numbers)
        found = bisect_left([page[:OFFSET_END] for page in pages], upper) - 1
        if (
            found == len(pages) - 1
            and numbers.stop < self._entry_pages
            and self._parse(pages[-1], numbers[-1])[-1] < upper
        ):
            return None  # it may be a later one
        return numbers[found] if found >= 0 else None

    def _locate_by_fences(self, upper: bytes, slot: int) -> int:
        pages = self._below(slot)
        content = self._read_pages(1 + self._entry_pages + slot, 1)[0]
        number = pages.start + bisect_left(_split(content[: len(pages) * OFFSET_END], OFFSET_END), upper) - 1
        self._announce_pages(range(number, number + 1))
        return number

    def _below(self, slot: int) -> range:
        """The pages of entries of a page of fences."""
        return range(slot * _FENCES, min((slot + 1) * _FENCES, self._entry_pages))

    def _entries(self, number: int) -> list[bytes]:
        return self._parse(self._read_entry_pages(range(number, number + 1))[0], number)

    def _parse(self, content: bytes, number: int) -> list[bytes]:
        count = min(_ENTRIES, self.range.entry_count - number * _ENTRIES)
        return _split(content[: count * ENTRY_BYTES], ENTRY_BYTES)

    def _announce_pages(self, numbers: range) -> None:
        """Begin to read pages of entries."""
        self._file.announce_reads([(PAGE_BYTES * (1 + numbers.start), PAGE_BYTES * len(numbers))])

    def _read_entry_pages(self, numbers: range) -> list[bytes]:
        return self._read_pages(1 + numbers.start, len(numbers))

    def _read_pages(self, number: int, count: int) -> list[bytes]:
        """The contents of consecutive pages of the file."""
        data = self._file.pread(PAGE_BYTES * count, PAGE_BYTES * number)
        return [
            _checked(data[at : at + PAGE_BYTES], self._file.path) for at in range(0, PAGE_BYTES * count, PAGE_BYTES)
        ]


def _checked(page: bytes, path: str) -> bytes:
    """The contents of a page."""
    if len(page) < PAGE_BYTES or _CRC.unpack_from(page)[0] != crc32(page[_CRC.size :]):
        raise DamagedIndex(path, "has a damaged page")
    return page[_CRC.size :]


def _hash_of(fence: bytes) -> int:
    return int.from_bytes(fence[:HASH_BYTES], "big")


def _split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
