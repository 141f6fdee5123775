"""One file of a commit log: its open files, and the entries of its batches until it is sealed.

RULES    1. A file is active, then finished (it gets no more frames), then sealed: it is durable and has a queue file, and its
            entries leave the memory.
         2. `written` counts the appends in the file and changes under the log's lock; `completed` counts those that were
            published or dropped and changes on the thread of the appends. A finished file is sealed when both are equal.
         3. The open files of a sealed one are closed by the file handle cache, and opened when they are needed.
         4. The end offset and state of a slot at the file's end are recorded when the slot gets its first frame in a later
            file, else when the file is sealed.
NOT HERE When files are created and sealed (commit_log.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocol.crc32c import crc32c
from protocol.records import NO_TIMESTAMP
from storage.commitlog.queue_file import ENTRY, QueueHeader, last_offset_in, unpack_entries
from storage.engine import BatchInfo
from storage.io.disk import Disk, File, StorageError
from storage.io.disk_lookup import NotResident, Read, read_waiting
from storage.io.file_handle_cache import IDLE, USED, FileHandleCache

LOG_SUFFIX: Final = ".clog"
QUEUE_SUFFIX: Final = ".queue"
NO_ID_CRC: Final = crc32c(b"")
"""`LogFile.file_id_crc` of a file whose header is lost."""
_GENERATION_DIGITS: Final = 4

_pack_entry = ENTRY.pack


class CachedFile:
    """A file of the log that is opened when needed and closed when unused."""

    __slots__ = ("_cache", "_disk", "_file", "_pinned", "path", "usage")

    def __init__(self, disk: Disk, path: str, cache: FileHandleCache | None, file: File | None = None) -> None:
        self._disk = disk
        self.path = path
        self._cache = cache
        self._file = file
        self._pinned: File | None = None
        self.usage = IDLE

    def get(self, read: Read) -> File:
        """The open file; a reader that must not wait gets NotResident instead if it is closed."""
        file = self._file
        if file is not None:
            self.usage = USED
            return file
        if self._pinned is not None:
            return self._pinned
        if read is not read_waiting:
            raise NotResident
        try:
            file = self._disk.open(self.path, write=False)
        except StorageError:
            if self._pinned is None:
                raise
            return self._pinned
        self._file = file
        self.release()
        return file

    def pin(self) -> None:
        """Keep the file open while this object is used: its name is going to be removed. Any thread."""
        self._pinned = self._file or self._disk.open(self.path, write=False)

    def release(self) -> None:
        """Allow the file handle cache to close the file."""
        if self._cache is not None:
            self._cache.register(self, CachedFile.close)

    def unregister(self) -> None:
        """Undo `release`: the cache no longer refers to this object."""
        if self._cache is not None:
            self._cache.unregister(self)

    def close(self) -> bool:
        """Close the file after its last use elsewhere."""
        self._file = None
        return True


class QueueFile(CachedFile):
    """The queue file of a sealed log file."""

    __slots__ = ("header",)

    def __init__(self, disk: Disk, path: str, cache: FileHandleCache | None, header: QueueHeader) -> None:
        super().__init__(disk, path, cache)
        self.header = header


class Slice:
    """The entries of one slot in one file that is not sealed."""

    __slots__ = ("_data", "count", "file", "max_timestamp", "size")

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._data = bytearray()  # shared with copies, which have fewer entries
        self.count = 0
        self.max_timestamp = NO_TIMESTAMP
        self.size = 0

    @property
    def packed(self) -> bytes:
        """The entries as in a queue file."""
        return bytes(self._data[: ENTRY.size * self.count])

    def get(self, first: int, count: int) -> bytes:
        """Some neighbouring entries, packed."""
        return bytes(self._data[ENTRY.size * first : ENTRY.size * (first + count)])

    def last_offset(self, number: int) -> int:
        """The last offset of an entry."""
        return last_offset_in(self._data, ENTRY.size * number)

    def add(self, position: int, batches: Sequence[BatchInfo]) -> int:
        """Add batches, whose buffer is at this position in the log; returns their size."""
        position -= self.file.start
        data, added, greatest = self._data, 0, self.max_timestamp
        for at, size, _, last_offset, timestamp, _ in batches:
            data += _pack_entry(position + at, size, last_offset, timestamp)
            added += size
            if timestamp > greatest:
                self.max_timestamp = greatest = timestamp
        self.count += len(batches)
        self.size += added
        return added

    def truncate(self, end_offset: int) -> None:
        """Keep the entries below an offset; copies of the slice do not change."""
        kept = [entry for entry in unpack_entries(self.packed) if entry.last_offset < end_offset]
        self._data = self._data[: ENTRY.size * len(kept)]
        self.count = len(kept)
        self.size = sum([entry.size for entry in kept])
        self.max_timestamp = max([entry.max_timestamp for entry in kept], default=NO_TIMESTAMP)

    def copy(self) -> Slice:
        """The slice as it is now; later entries are not in it."""
        copied = Slice(self.file)
        copied._data, copied.count = self._data, self.count
        copied.max_timestamp, copied.size = self.max_timestamp, self.size
        return copied


class LogFile:
    """One log file; positions are those of the whole log."""

    __slots__ = (
        "completed", "damaged", "end", "ends", "file_id_crc", "is_checked", "is_verified", "log", "path", "previous",
        "queue_file", "removed", "slices", "slot_count", "start", "states", "touched", "unrecorded", "written",
    )  # fmt: skip

    def __init__(self, start: int, file_id: bytes, log: CachedFile, end: int) -> None:
        self.start = start
        self.end = end
        """The position after the last frame."""
        self.file_id_crc = crc32c(file_id)
        self.log = log
        self.path = log.path
        self.previous: LogFile | None = None
        """The file before it, while that is not sealed."""
        self.queue_file: QueueFile | None = None
        """Of a sealed file."""
        self.is_checked = True
        """Whether all of the queue file was valid when this process read it, not only the header."""
        self.is_verified = True
        """Whether this process has written the frames or has checked all of them; else reads check them (frame_check.py)."""
        self.damaged: tuple[int, ...] = ()
        """The positions of damaged batches that were logged."""
        self.written = 0
        self.completed = 0
        self.removed = 0
        """The size of batches in it whose entries were removed (queue_file.py)."""
        self.slot_count = 0
        """The number of slots at the file's end."""
        self.slices: dict[int, Slice] = {}
        """The entries of each slot, until the file is sealed."""
        self.touched: set[int] = set()
        """The slots with frames in this file."""
        self.ends: dict[int, int] = {}
        """End offsets at the file's end, of slots with frames in a later file (rule 4)."""
        self.states: dict[int, list[object]] = {}
        """States at the file's end, of slots with frames in this file and in a later one."""
        self.unrecorded: list[int] | None = None
        """Those without a state yet, while states are recorded to seal the file (sealing.py rule 3)."""

    def __repr__(self) -> str:
        return f"LogFile({self.path!r}, {self.start}..{self.end})"

    def forget_sealed_previous(self) -> None:
        """Stop referring to the file before it if that is sealed: a run may replace it."""
        if self.previous is not None and self.previous.is_sealed:
            self.previous = None

    def unregister(self) -> None:
        """No file handle cache refers to the file any more."""
        self.log.unregister()
        if self.queue_file is not None:
            self.queue_file.unregister()

    @property
    def is_sealed(self) -> bool:
        """Whether the file has its queue file."""
        return self.queue_file is not None

    @property
    def has_pending_appends(self) -> bool:
        """Whether an append was written and neither published nor dropped."""
        return self.written != self.completed


class UnusedFile(NamedTuple):
    """A file without frames, for later appends."""

    start: int
    file_id: bytes
    handle: File
    is_allocated: bool = True
    """Whether the disk had space for all of it when it was created; True for one that a start has found."""


class LogName(NamedTuple):
    """What the name of a log file says."""

    start: int
    generation: int
    """0, or that of a run (run_file.py)."""

    def __str__(self) -> str:
        suffix = f"-{self.generation:0{_GENERATION_DIGITS}d}" if self.generation else ""
        return f"{self.start:020d}{suffix}{LOG_SUFFIX}"


def parse_log_name(name: str) -> LogName | None:
    """The start and the generation; None for other names."""
    stem, dash, generation = name.removesuffix(LOG_SUFFIX).partition("-")
    is_valid = name.endswith(LOG_SUFFIX) and len(stem) == 20 and stem.isdigit()
    if not is_valid or (dash and not (len(generation) >= _GENERATION_DIGITS and generation.isdigit())):
        return None
    return LogName(int(stem), int(generation or 0))


def name_at(path: str) -> LogName:
    """The name of the log file at a path."""
    name = parse_log_name(path.rpartition("/")[2])
    assert name is not None
    return name


def is_run(path: str) -> bool:
    """Whether this log file is a run (run_file.py)."""
    return name_at(path).generation > 0


def log_file_name(start: int) -> str:
    """The name of the log file with this start that appends write."""
    return str(LogName(start, 0))
