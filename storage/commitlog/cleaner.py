"""The cleaner of a commit log: it rewrites neighbouring sealed files into runs, to remove dead batches or to settle them.

RULES    1. A pass measures the live bytes (live_bytes.py), then rewrites windows of files (run_choice.py) while one is worth
            it. `begin_pass` runs on the thread of the appends, the steps of `clean` in another one, one pass at a time.
         2. A run is committed after all frames written before it are durable: one of them may be what made a batch dead.
         3. The files that a run has replaced are removed at once. Readers that have found them keep them open.
         4. Dead bytes are removed at the latest `max_dead_ms` after their batches died, and the time of a pass: an eighth of it
            for the active file to be finished, the rest for the file to become overdue.
         5. On a full disk, a file that was created ahead is removed to make space for a run. A run that finds no space is
            removed; the log is as before.
         6. A file with a damaged frame stays as it is; it is tried again when fewer of its batches are live, and removed when
            none is.
         7. Settling (`settle`) rewrites files for readers, each once. It may be under way while passes clean other files. It
            needs twice the space of its run and ends when the disk is nearly full.
NOT HERE When passes run and how fast (broker/node/commit_log_cleaning.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from typing import Final

from storage.commitlog.commit_log import SLOTS_PER_TURN, CommitLog
from storage.commitlog.live_bytes import Extent, FileSpace, LiveBytes
from storage.commitlog.log_file import LogFile, LogName, is_run, name_at
from storage.commitlog.run_choice import Candidate, Window, choose, choose_unsettled
from storage.commitlog.run_file import DamagedSource, RunQueue, RunWriter, Source, is_settled_run, run_queue_steps
from storage.commitlog.run_recovery import remove_files
from storage.commitlog.sealing import queue_path
from storage.io.disk import TEMPORARY, Disk, StorageError

_log = logging.getLogger("barnabas.storage")

MAX_DEAD_MS: Final = 7 * 24 * 3600 * 1000
_FULL_FILES: Final = 2
"""A disk with less space than this many files counts as full."""


@dataclass(slots=True)
class CleanerMetrics:
    """Figures of a commit log's cleaner."""

    live_bytes: int = 0
    dead_bytes: int = 0
    copied_bytes: int = 0
    removed_bytes: int = 0
    """Sizes of removed log files, less those of the runs in their place."""
    runs: int = 0
    settled_bytes: int = 0
    """Written by settling."""
    damaged_files: int = 0


@dataclass(slots=True)
class Cleaner:
    """Cleans one commit log."""

    _disk: Disk
    _commit_log: CommitLog
    max_dead_ms: int = MAX_DEAD_MS
    metrics: CleanerMetrics = field(default_factory=CleanerMetrics)
    _space: LiveBytes = field(init=False)
    _active: tuple[str, int] | None = field(default=None, init=False)  # path, and when it was first seen
    _damaged: dict[str, int] = field(default_factory=dict, init=False)  # live bytes of damaged files, by path
    _settled: dict[str, bool] = field(default_factory=dict, init=False)  # of runs, by path
    _rewritten: set[str] = field(default_factory=set, init=False)  # the paths of files that are being rewritten
    _unfinished: set[str] = field(default_factory=set, init=False)  # the paths of runs that are being written

    def __post_init__(self) -> None:
        self._space = LiveBytes(self._disk)

    def begin_pass(self, wall_ms: int) -> bool:
        """Seal finished files, and finish an active one that is old (rule 4), unless the next one would be the reserve.

        Returns whether the pass may begin; else it is called again in the next turn: there are too many slots for one.
        """
        is_ready = not self._commit_log.seal_finished(SLOTS_PER_TURN)
        files = self._commit_log.files
        if not is_ready or not files or files[-1].is_sealed:
            return is_ready
        path, since_ms = self._active or ("", 0)
        if files[-1].path != path:
            self._active = files[-1].path, wall_ms
        elif since_ms + self.max_dead_ms // 8 <= wall_ms and self._commit_log.has_reserve:
            return not self._commit_log.finish_active(SLOTS_PER_TURN)
        return True

    def clean(self, wall_ms: int, *, is_full: bool = False) -> Iterator[int]:
        """One pass; yields the bytes written, or read again, in each step; ends when nothing is worth rewriting.

        Raises:
            StorageError: the disk failed. A full disk ends the pass.
        """
        log = self._commit_log
        yield from log.check_queues()
        for _ in range(len(log.files) + 1):  # each run makes the files fewer, or their dead bytes
            files, extents = log.sealed_files, log.extents()
            if not files:
                break
            spaces = self._space.update(files, extents, wall_ms)
            self._count(spaces)
            window = self._choose(files, spaces, wall_ms, is_full=is_full)
            if window is None:
                break
            try:
                yield from self._rewrite(window, files, spaces, extents)
            except StorageError as error:
                if not error.is_full:
                    raise
                if not log.release_ballast():
                    break

    def settle(self, wall_ms: int, is_full: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Settle the oldest files that never were, if there are enough; yields as `clean`. `is_full`: in any thread.

        Raises:
            StorageError: the disk failed. A nearly full disk ends it.
        """
        log = self._commit_log
        files, extents = log.sealed_files, log.extents()
        spaces = self._space.update(files, extents, wall_ms) if files else []
        candidates = self._candidates(files, spaces, wall_ms)
        window = choose_unsettled(candidates, log.usable_bytes // 2 - _FULL_FILES * log.file_bytes)
        if window is None:
            return
        try:
            yield from self._rewrite(window, files, spaces, extents, is_full)
        except StorageError as error:
            if not error.is_full:
                raise

    def remove_unfinished(self) -> None:
        """Remove the runs of passes that are not continued, at the shutdown; a start would remove them."""
        for path in list(self._unfinished):
            self._remove_run(path)

    # ---- private -----------------------------------------------------------------------------------------

    def _choose(
        self, files: Sequence[LogFile], spaces: Sequence[FileSpace], wall_ms: int, *, is_full: bool
    ) -> Window | None:
        log = self._commit_log
        usable = log.usable_bytes
        is_full = is_full or usable < _FULL_FILES * log.file_bytes
        candidates = self._candidates(files, spaces, wall_ms)
        max_live = max(usable + log.ballast_bytes - log.file_bytes // 8, 0)  # a run without live batches is small
        return choose(candidates, log.file_bytes, is_full=is_full, max_live=max_live)

    def _candidates(
        self, files: Sequence[LogFile], spaces: Sequence[FileSpace], wall_ms: int
    ) -> list[Candidate | None]:
        return [self._candidate(file, space, wall_ms) for file, space in zip(files, spaces, strict=True)]

    def _candidate(self, file: LogFile, space: FileSpace, wall_ms: int) -> Candidate | None:
        if space.live >= self._damaged.get(file.path, space.live + 1) or file.path in self._rewritten:
            return None
        is_overdue = space.dead_since_ms is not None and space.dead_since_ms + self.max_dead_ms * 7 // 8 <= wall_ms
        entries = 0 if file.queue_file is None else file.queue_file.header.entry_count
        return Candidate(
            space.live, space.dead, wall_ms - space.written_ms, is_overdue, entries, self._is_settled(file)
        )

    def _is_settled(self, file: LogFile) -> bool:
        if not is_run(file.path):
            return False
        if file.path not in self._settled:
            self._settled[file.path] = is_settled_run(self._disk, file.path)
        return self._settled[file.path]

    @contextmanager
    def _rewriting(self, sources: Sequence[LogFile]) -> Iterator[None]:
        """No other rewriting uses these files meanwhile."""
        paths = {file.path for file in sources}
        self._rewritten |= paths
        try:
            yield
        finally:
            self._rewritten -= paths
            for path in paths:
                self._settled.pop(path, None)

    def _rewrite(
        self,
        window: Window,
        files: Sequence[LogFile],
        spaces: Sequence[FileSpace],
        extents: Mapping[int, Extent],
        is_full: Callable[[], bool] | None = None,
    ) -> Iterator[int]:
        """Replace the files of a window by a run. `is_full`: given for a settled run, which ends when it is true."""
        sources = [files[number] for number in window.files]
        written_ms = max([spaces[number].written_ms for number in window.files])
        with self._rewriting(sources):
            try:
                yield from self._write_run(sources, extents, written_ms, is_full)
            except DamagedSource as error:
                self._on_damage(error, {file.path: space.live for file, space in zip(files, spaces, strict=True)})

    def _write_run(
        self,
        sources: Sequence[LogFile],
        extents: Mapping[int, Extent],
        written_ms: int,
        is_full: Callable[[], bool] | None,
    ) -> Iterator[int]:
        disk, log = self._disk, self._commit_log
        start, end = sources[-1].start, sources[-1].end
        path = f"{log.directory}/{LogName(start, max([name_at(file.path).generation for file in sources]) + 1)}"
        file_id, run = log.new_run(path, start, end)
        described = [_described(file) for file in sources]
        is_settled = is_full is not None or any(map(self._is_settled, sources))
        writer = RunWriter(disk, path, file_id, described, extents, is_settled=is_settled)
        self._unfinished.add(path)
        try:
            for written in writer.steps():
                self._count_written(written, path, is_full)
                yield written
            queue = yield from self._checked_queue(path, start)
            disk.set_modified_ms(path, written_ms)
            log.sync_written()
            disk.replace_atomically(queue_path(path), queue)
        except (DamagedSource, StorageError):
            self._remove_run(path)
            raise
        self._unfinished.discard(path)
        self._commit(sources, run, queue)

    def _remove_run(self, path: str) -> None:
        self._unfinished.discard(path)
        for written_path in (queue_path(path), path, queue_path(path) + TEMPORARY):  # a lone queue is a lost file
            self._disk.unlink(written_path, missing_ok=True)

    def _count_written(self, written: int, path: str, is_full: Callable[[], bool] | None) -> None:
        if is_full is None:
            self.metrics.copied_bytes += written
            return
        self.metrics.settled_bytes += written
        log = self._commit_log
        if is_full() or log.usable_bytes < _FULL_FILES * log.file_bytes:
            raise StorageError("settle files to", path, OSError(ENOSPC, os.strerror(ENOSPC)))

    def _checked_queue(self, path: str, start: int) -> Generator[int, None, bytes]:
        """The queue of a run that was written; the disk has failed if it does not return what was written."""
        queue: RunQueue = yield from run_queue_steps(self._disk, path, start)
        if queue.lost:
            raise StorageError("read what was written to", path, OSError(EIO, os.strerror(EIO)))
        return queue.data

    def _commit(self, sources: Sequence[LogFile], run: LogFile, queue: bytes) -> None:
        """The run is durable: use it, and remove its sources (rule 3)."""
        for file in sources:
            file.log.pin()
            if file.queue_file is not None:
                file.queue_file.pin()
        self._commit_log.replace(sources, run, queue)
        removed = sum([self._disk.size(file.path) for file in sources])
        remove_files(self._disk, [file.path for file in sources])
        self.metrics.removed_bytes += removed - self._disk.size(run.path)
        self.metrics.runs += 1

    def _count(self, spaces: Sequence[FileSpace]) -> None:
        self.metrics.live_bytes = sum([space.live for space in spaces])
        self.metrics.dead_bytes = sum([space.dead for space in spaces])

    def _on_damage(self, error: DamagedSource, live: Mapping[str, int]) -> None:
        self._damaged[error.path] = live[error.path]
        self.metrics.damaged_files = len(self._damaged)
        _log.error("%s; the file stays as it is until all of its batches are deleted", error)


def _described(file: LogFile) -> Source:
    queue = file.queue_file
    assert queue is not None
    return Source(file.path, queue.path, file.start, file.end, queue.header.first)
