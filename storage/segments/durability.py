"""How much of a partition is durable, and what has to be synced so that more is.

RULES    1. A sync covers the logs from the flushed end on, and of a segment that was finished since the last sync its
            indexes too. Those of the active segment are built anew after a crash and need no sync.
         2. The recovery point stays at a finished segment until a sync has covered its indexes: nobody would build
            them anew. (An ordered file system rarely loses them; "rarely" is what recovery is for.)
         3. What was cut off while a sync was under way does not count when the sync is done.
         4. The directory is synced when it got new names.
         5. What is trimmed before it was synced is synced all the same: a loss of power may bring it back, and a hole in it
            would take what lies behind.
         6. There may be thousands of segments, each with a few files: who asks for the oldest of them only, gets these.
         7. A finished segment whose indexes are still to be written (storage/io/deferred_file_ops.py) waits for a later sync.
NOT HERE Running a sync, in whichever thread; when to ask for one (log.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from storage.engine import SyncWork
from storage.io.deferred_file_ops import Change
from storage.io.disk import Disk, File
from storage.segments.segment import Segment

UNKNOWN = -1


class _Sync:
    """A sync under way."""

    __slots__ = ("counts", "end_offset", "finished")

    def __init__(self, end_offset: int, finished: list[Segment]) -> None:
        self.end_offset = end_offset
        self.counts = end_offset  # what of it has not been cut off since
        self.finished = finished


class Durability:
    """The flushed end of one partition, and what waits for a sync."""

    __slots__ = ("_disk", "_finished", "_has_new_names", "_leaving", "_syncing", "flushed_end")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.flushed_end = UNKNOWN
        self._finished: dict[int, Segment] = {}  # since the last sync, by base offset: there may be thousands
        self._syncing: list[_Sync] = []
        self._has_new_names = False
        self._leaving: list[File] = []  # of segments that were trimmed (rule 5)

    def finished(self, segment: Segment) -> None:
        """Its indexes are complete and were written."""
        self._finished[segment.base_offset] = segment

    def is_unsynced(self, segment: Segment) -> bool:
        """Whether its indexes are still to be synced."""
        return self._finished.get(segment.base_offset) is segment

    def unfinished(self, segment: Segment) -> None:
        """It is gone, or appended to again."""
        if self._finished.get(segment.base_offset) is segment:
            del self._finished[segment.base_offset]

    def leaving(self, segment: Segment, end_offset: int, *, is_kept: bool) -> list[Change]:
        """It ends there, and is about to be trimmed: what comes first, unless its file may be kept open until a sync."""
        self.unfinished(segment)
        if not segment.size or not 0 <= self.flushed_end < end_offset:
            return []
        if not is_kept:
            return [segment.file.sync]
        self._leaving.append(segment.file)
        return []

    def new_names(self) -> None:
        """Files were made."""
        self._has_new_names = True

    def cut(self, end_offset: int) -> None:
        """Nothing from here on is there any more."""
        self.flushed_end = min(self.flushed_end, end_offset)
        for sync in self._syncing:
            sync.counts = min(sync.counts, end_offset)

    def recovery_point(self) -> int:
        """Where a recovery would have to begin."""
        syncing = (segment.base_offset for sync in self._syncing for segment in sync.finished)
        return min([self.flushed_end, *self._finished, *syncing])

    def collect(
        self, directory: str, end_offset: int, unflushed: Iterable[Segment], most: int | None = None
    ) -> SyncWork:
        """What makes all before `end_offset` durable: it lies in segments finished lately and in those `unflushed`.

        `most`: with so many of the finished ones, which are to be made durable as well.
        """
        finished = list(islice(self._written(), most))
        for segment in finished:
            del self._finished[segment.base_offset]
        self._syncing.append(_Sync(end_offset, finished))
        files, self._leaving = self._leaving, []
        for segment in finished:
            files += segment.index_files()
        with_data = [segment for segment in (*finished, *unflushed) if segment.size]
        files += {segment.base_offset: segment.file for segment in with_data}.values()
        if self._has_new_names:
            self._has_new_names = False
            files.append(self._disk.open_directory(directory))
        return SyncWork(end_offset, files, next(self._written(), None) is None)

    def _written(self) -> Iterator[Segment]:
        """The finished ones that wait for nothing else (rule 7)."""
        return (segment for segment in self._finished.values() if segment.is_written)

    def done(self, end_offset: int) -> None:
        """The sync with this end has succeeded; those begun before it count with it."""
        for number, sync in enumerate(self._syncing):
            if sync.end_offset == end_offset:
                del self._syncing[: number + 1]
                self.flushed_end = max(self.flushed_end, sync.counts)
                break
