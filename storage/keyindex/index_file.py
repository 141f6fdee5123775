"""One file of a key index: sorted entries in pages, with two levels of fences above them.

FORMAT   `<first offset, 20 digits>-<end offset, 20 digits>.keyindex`, in pages of 4 KiB; numbers are big-endian
             page 0      the header, see _HEADER; its CRC is that of the rest of the page
             entries     pages of CRC-32 and up to 255 entries, all full but the last
             fences      pages of CRC-32 and up to 340 fences: hash and offset of the first entry of each page of entries
             root        CRC-32, and the first fence of each page of fences
RULES    1. A file never changes. It is written under a temporary name, synced and renamed: under its own name it is complete.
         2. It has the entries of all records from its first offset to its end, except records below the log's start, and
            others that were removed from the log since.
         3. Header and root are read when it is opened: 14 KiB for 10^8 entries. A search then reads one page of fences and one
            of entries, and earlier pages of entries if the hash continues there. The first two are announced: a search in
            several files waits for the disk twice, not twice for each file.
         4. A page with a wrong CRC raises DamagedIndex.
NOT HERE What an entry means (entries.py), which files a partition has (index_directory.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from storage.io.disk import Disk, File
from storage.keyindex.entries import ENTRY_BYTES, HASH_BYTES, OFFSET_END

SUFFIX: Final = ".keyindex"
UNFINISHED: Final = ".keyindex.new"
PAGE_BYTES: Final = 4096
_CRC: Final = Struct(">I")
_ENTRIES: Final = (PAGE_BYTES - _CRC.size) // ENTRY_BYTES
_FENCES: Final = (PAGE_BYTES - _CRC.size) // OFFSET_END
_HEADER: Final = Struct(">4sQIIqqiqq8s")
"""Magic, entries, pages of entries, pages of fences, first offset, end offset, leader epoch of the last batch, least and
greatest timestamp in ms, digest of the topic id and the indexed fields."""
_MAGIC: Final = b"BKI1"
_PAGES_AT_A_TIME: Final = 64


class DamagedIndex(Exception):
    """A file has not the contents that were written."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} has a damaged {what}")
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


def digest_of(topic_id: bytes, fields: Sequence[str]) -> bytes:
    """Identifies the topic and the indexed fields, whatever their order; 8 bytes."""
    names = "\0".join(sorted(set(fields))).encode("utf-8", "surrogateescape")
    return blake2b(topic_id + names, digest_size=8).digest()


class IndexWriter:
    """Writes one file; the caller passes ascending entries.

    Raises:
        StorageError: the disk is full or failed, or the directory was removed. The unfinished file may remain.
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
        DamagedIndex: header or root are damaged.
        StorageError: the file is missing or unreadable.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._file: File = disk.open(path, write=False)
        head = self._read_page(0)
        magic, entry_count, entry_pages, fence_pages, start, end, epoch, least, greatest, digest = _HEADER.unpack_from(
            head
        )
        if magic != _MAGIC:
            raise DamagedIndex(path, "header")
        self.range = IndexRange(start, end, epoch, entry_count, least, greatest)
        self.digest: bytes = digest
        self._entry_pages = entry_pages
        length = _CRC.size + fence_pages * OFFSET_END
        root = self._file.pread(length, PAGE_BYTES * (1 + entry_pages + fence_pages))
        if len(root) < length or _CRC.unpack_from(root)[0] != crc32(root[_CRC.size :]):
            raise DamagedIndex(path, "root")
        self._root = _split(root[_CRC.size :], OFFSET_END)

    def announce(self, upper: bytes) -> None:
        """Begin to read the page of fences that `locate` needs."""
        slot = bisect_left(self._root, upper) - 1
        if slot >= 0:
            self._announce_page(1 + self._entry_pages + slot)

    def locate(self, upper: bytes) -> int:
        """The last page of entries whose first entry is below `upper`; -1 if there is none. Begins to read it.

        Raises:
            DamagedIndex, StorageError: as above.
        """
        slot = bisect_left(self._root, upper) - 1
        if slot < 0:
            return -1
        count = min(_FENCES, self._entry_pages - slot * _FENCES)
        fences = _split(self._read_page(1 + self._entry_pages + slot)[: count * OFFSET_END], OFFSET_END)
        number = slot * _FENCES + bisect_left(fences, upper) - 1
        self._announce_page(1 + number)
        return number

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
            count = min(_PAGES_AT_A_TIME, self._entry_pages - number)
            data = self._file.pread(PAGE_BYTES * count, PAGE_BYTES * (1 + number))
            found: list[bytes] = []
            for page in range(count):
                found += self._parse(data[PAGE_BYTES * page : PAGE_BYTES * (page + 1)], number + page)
            yield found

    def _entries(self, number: int) -> list[bytes]:
        return self._parse(self._file.pread(PAGE_BYTES, PAGE_BYTES * (1 + number)), number)

    def _parse(self, page: bytes, number: int) -> list[bytes]:
        count = min(_ENTRIES, self.range.entry_count - number * _ENTRIES)
        return _split(_checked(page, self._file.path)[: count * ENTRY_BYTES], ENTRY_BYTES)

    def _announce_page(self, number: int) -> None:
        self._file.announce_reads([(PAGE_BYTES * number, PAGE_BYTES)])

    def _read_page(self, number: int) -> bytes:
        return _checked(self._file.pread(PAGE_BYTES, PAGE_BYTES * number), self._file.path)


def _checked(page: bytes, path: str) -> bytes:
    """The contents of a page."""
    if len(page) < PAGE_BYTES or _CRC.unpack_from(page)[0] != crc32(page[_CRC.size :]):
        raise DamagedIndex(path, "page")
    return page[_CRC.size :]


def _split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
