"""The jobs of the key index, as plain values that can be sent to another process, and what runs them.

RULES    1. A job opens files by path and has no state, except: the entries of one partition that no file has yet, and one merge
            in progress. Both are of the partition whose job came last; another one's are dropped.
         2. `RemoveRanges` also drops both for its directory: the log has changed.
         3. `digest` identifies the partition and its indexed fields (`digest_of`).
         4. The result of a job is in its description; after a failure it is a JobFailed.
NOT HERE The order of jobs (replication/partition/key_indexer.py, key_search.py), processes (broker/io/index_process.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from protocol.primitives import Buffer
from protocol.records import Record
from storage.engine import AbortedTransaction
from storage.io.disk import Disk, StorageError
from storage.keyindex.entries import (
    NO_TIMESTAMPS,
    entry_offset,
    entry_seconds,
    field_hash,
    index_batches,
    matching,
    seconds_of,
    size_of,
    upper_bound,
)
from storage.keyindex.index_directory import covering, delete_ranges, load_ranges, merge, offsets_of
from storage.keyindex.index_file import DamagedIndex, IndexFile, IndexRange, IndexWriter

MAX_ENTRIES_IN_MEMORY: Final = 1 << 18
"""After this number of entries the caller writes a file: about 20 MB in memory, 4 MB in the file."""
_MAX_OPEN_FILES: Final = 256
_LEAST_RECORDS: Final = 2
"""Of a result that is cut: the first one may be larger than the limit, and the second one shows that there are more."""
_MERGE_STEPS: Final = 8
"""Of one job: some ten thousand entries each, so that other jobs wait for a fraction of a second."""


class LoadRanges(NamedTuple):
    """Find the valid files; the result is list[IndexRange]. Deletes all others."""

    directory: str
    digest: bytes
    may_create: bool = False
    """Whether the directory is created if it does not exist: it has nothing but the index."""


class AddBatches(NamedTuple):
    """Index whole batches in memory; the result is an Added."""

    directory: str
    fields: tuple[str, ...]
    start_offset: int
    """The end of the last file, or of the last job for this directory since."""
    end_offset: int
    """Batches that reach above are left out."""
    data: Buffer


class Added(NamedTuple):
    """What is in memory now."""

    next_offset: int
    entry_count: int


class WriteRange(NamedTuple):
    """Write a file of what is in memory; the result is its IndexRange."""

    directory: str
    digest: bytes


class MergeRanges(NamedTuple):
    """Merge neighbouring ranges; the result is the new IndexRange, or None: submit the same job again."""

    directory: str
    digest: bytes
    ranges: tuple[IndexRange, ...]
    log_start_offset: int


class RemoveRanges(NamedTuple):
    """Delete files; the result is None."""

    directory: str
    ranges: tuple[IndexRange, ...]


class FindOffsets(NamedTuple):
    """Look a value up; the result is a list of candidate offsets, descending, at most `limit`."""

    directory: str
    digest: bytes
    field: str
    value: bytes
    from_offset: int
    before_offset: int
    from_ms: int
    to_ms: int
    """Excluded."""
    limit: int


class MatchRecords(NamedTuple):
    """Compare records; the result is a list of those that match, the highest offset first.

    It ends with the second record or a later one above `max_bytes`: lower offsets are left out then.
    """

    batches: tuple[Buffer, ...]
    """The highest offsets first."""
    offsets: frozenset[int]
    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions with these offsets; their records are left out."""
    field: str
    value: bytes
    from_ms: int
    to_ms: int
    max_bytes: int


class JobFailed(NamedTuple):
    """A job failed."""

    text: str
    damaged: str | None = None
    """The name of the damaged index file, if that is the reason."""
    is_missing: bool = False
    """Whether something is missing: a merge, a deletion of the partition or of damaged files was faster."""


Job = LoadRanges | AddBatches | WriteRange | MergeRanges | RemoveRanges | FindOffsets | MatchRecords


class IndexJobs:
    """Runs jobs."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._pending: _Pending | None = None
        self._merge: tuple[MergeRanges, Iterator[IndexRange | None]] | None = None
        self._files: dict[str, tuple[str | None, IndexFile]] = {}  # the last used one is the last
        self._run: dict[type, Callable[[Any], object]] = {
            LoadRanges: self._load,
            AddBatches: self._add,
            WriteRange: self._write,
            MergeRanges: self._continue_merge,
            RemoveRanges: self._remove,
            FindOffsets: self._find,
            MatchRecords: self._match,
        }

    def run(self, job: Job) -> object:
        """The result of a job, or a JobFailed."""
        try:
            return self._run[type(job)](job)
        except DamagedIndex as error:
            self._drop(job)
            return JobFailed(str(error), damaged=error.file_name)
        except StorageError as error:
            self._drop(job)
            return JobFailed(str(error), is_missing=isinstance(error.__cause__, FileNotFoundError))

    def _drop(self, job: Job) -> None:
        pending, merging = self._pending, self._merge
        if isinstance(job, AddBatches | WriteRange | RemoveRanges) and pending and pending.directory == job.directory:
            self._pending = None
        if isinstance(job, MergeRanges | RemoveRanges) and merging and merging[0].directory == job.directory:
            self._merge = None

    # ---- building ----------------------------------------------------------------------------------------

    def _load(self, job: LoadRanges) -> list[IndexRange]:
        self._pending = self._merge = None
        if job.may_create:
            self._disk.make_dirs(job.directory)
        return load_ranges(self._disk, job.directory, job.digest)

    def _add(self, job: AddBatches) -> Added:
        pending = self._pending
        if pending is None or pending.directory != job.directory or pending.next_offset != job.start_offset:
            pending = self._pending = _Pending(job.directory, job.start_offset)
        pending.add(job)
        return Added(pending.next_offset, len(pending.entries))

    def _write(self, job: WriteRange) -> IndexRange | JobFailed:
        pending, self._pending = self._pending, None
        if pending is None or pending.directory != job.directory:
            return JobFailed("the entries in memory are lost", is_missing=True)  # a search has found damage
        pending.entries.sort()
        with IndexWriter(self._disk, job.directory, pending.start_offset) as writer:
            writer.append(pending.entries)
            return writer.finish(pending.range, job.digest)

    def _continue_merge(self, job: MergeRanges) -> IndexRange | None:
        if self._merge is None or self._merge[0][:-1] != job[:-1]:  # a later log start is for the next merge
            self._merge = job, merge(self._disk, job.directory, job.digest, job.ranges, job.log_start_offset)
        steps = self._merge[1]
        for _ in range(_MERGE_STEPS):
            found = next(steps)
            if found is not None:
                self._merge = None
                return found
        return None

    def _remove(self, job: RemoveRanges) -> None:
        self._drop(job)
        delete_ranges(self._disk, job.directory, job.ranges)

    # ---- searching ---------------------------------------------------------------------------------------

    def _find(self, job: FindOffsets) -> list[int] | JobFailed:
        upper = upper_bound(field_hash(job.field, job.value), job.before_offset)
        first_s, last_s = seconds_of(job.from_ms), seconds_of(job.to_ms)
        files, complete_from = self._files_of(job)
        for file in files:
            file.announce(upper)
        pages = [file.locate(upper) for file in files]
        found: list[int] = []
        for file, page in zip(files, pages, strict=True):
            for entry in file.find(upper, page):
                offset = entry_offset(entry)
                if offset < job.from_offset:
                    break
                if first_s <= entry_seconds(entry) <= last_s and (not found or offset != found[-1]):
                    found.append(offset)
                    if len(found) == job.limit:
                        return found
        if complete_from > job.from_offset:
            return JobFailed(f"{job.directory} has no index file before offset {complete_from}", is_missing=True)
        return found

    def _files_of(self, job: FindOffsets) -> tuple[list[IndexFile], int]:
        """The files that may have such records, the last one first, and the offset from which on no file is missing."""
        files: list[IndexFile] = []
        complete_from = job.before_offset
        for name in reversed(covering(self._disk.listdir(job.directory))):
            start_offset, end_offset = offsets_of(name)
            if start_offset >= complete_from or complete_from <= job.from_offset:
                continue
            if end_offset < complete_from:
                break
            complete_from = start_offset
            file = self._open(f"{job.directory}/{name}", job.digest)
            if file.range.min_timestamp_ms < job.to_ms and file.range.max_timestamp_ms >= job.from_ms:
                files.append(file)
        return files, complete_from

    def _open(self, path: str, digest: bytes) -> IndexFile:
        """The file, from the last searches if it is the same (another one may have got the name)."""
        stamp = self._disk.stamp(path)
        known = self._files.pop(path, None)
        if known is None or known[0] != stamp:
            known = stamp, IndexFile(self._disk, path, digest)
            # Deleted files would keep their space; it is time to look for them when there is a new one.
            self._files = {name: file for name, file in self._files.items() if self._disk.exists(name)}
        self._files[path] = known
        if len(self._files) > _MAX_OPEN_FILES:
            del self._files[next(iter(self._files))]
        return known[1]

    def _match(self, job: MatchRecords) -> list[Record]:
        found: list[Record] = []
        size = 0
        for data in job.batches:
            newest: deque[Record] = deque()
            for record in matching(data, *job[1:-1]):
                newest.append(record)
                size += size_of(record)
                while len(found) + len(newest) > _LEAST_RECORDS and size - size_of(newest[0]) > job.max_bytes:
                    size -= size_of(newest.popleft())
            found += reversed(newest)
            if len(found) >= _LEAST_RECORDS and size > job.max_bytes:
                break
        return found


class _Pending:
    """The entries of one partition that no file has yet."""

    def __init__(self, directory: str, start_offset: int) -> None:
        self.directory = directory
        self.start_offset = self.next_offset = start_offset
        self.entries: list[bytes] = []
        self._leader_epoch, self._least_ms, self._greatest_ms = -1, *NO_TIMESTAMPS

    def add(self, job: AddBatches) -> None:
        """Index the batches of a job."""
        found = index_batches(job.data, job.start_offset, job.end_offset, job.fields)
        self.entries += found.entries
        self.next_offset = found.next_offset
        self._leader_epoch = max(self._leader_epoch, found.leader_epoch)
        self._least_ms = min(self._least_ms, found.min_timestamp_ms)
        self._greatest_ms = max(self._greatest_ms, found.max_timestamp_ms)

    @property
    def range(self) -> IndexRange:
        """The range of the entries."""
        ends = self.start_offset, self.next_offset
        return IndexRange(*ends, self._leader_epoch, len(self.entries), self._least_ms, self._greatest_ms)
