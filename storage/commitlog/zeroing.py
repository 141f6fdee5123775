"""Zeros behind the frames of the active file, so that the sync of an append stores its blocks and nothing else.

RULES    1. A block that is new, or only reserved, is part of its file after a commit of the file system's journal, for which
            fdatasync waits. In blocks that were written before, it stores the blocks.
         2. Zeros are written when a round of syncs begins and less than half of `STEP_BYTES` of them is left. Logs that are
            never synced get none, and neither do those with rounds of more than `MAX_ROUND_BYTES`: their syncs are few,
            and the zeros would double what they write.
         3. Zeros are written in pieces, each under the lock of the log and behind the end of the frames, and only to the active
            file.
         4. They are synced by a descriptor of their own: the kernel reports a failed sync once for each descriptor, and the
            rounds must not miss it.
NOT HERE The end of the frames in a file with zeros (frames.py). Why: docs/decisions/0109-zeros-ahead-of-synced-appends.md
"""

from __future__ import annotations

from typing import Final

from storage.commitlog.log_file import LogFile
from storage.io.disk import Disk, StorageError
from storage.io.path_guard import LockContext

STEP_BYTES: Final = 8 << 20
MAX_ROUND_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 128 << 10
_SYNCED_BYTES: Final = 1 << 20
"""A round waits for the zeros that are not synced yet."""


class ZeroAhead:
    """The zeros of one log's active file."""

    __slots__ = ("_begun", "_disk", "_file", "_file_bytes", "_is_writing", "_lock", "_zeroed")

    def __init__(self, disk: Disk, lock: LockContext, file_bytes: int) -> None:
        """`lock`: held by writes to the log."""
        self._disk = disk
        self._lock = lock
        self._file_bytes = file_bytes
        self._file: LogFile | None = None
        self._begun = 0  # the end of the frames when the last round began
        self._zeroed = 0  # the position after the zeros
        self._is_writing = False

    def is_due(self, file: LogFile) -> bool:
        """Whether `write` is to be called: a round of the active file begins; on the thread of the appends (rule 2)."""
        begun, self._begun = max(self._begun, file.start), file.end
        if self._file is not file:
            if self._is_writing:
                return False
            self._file, self._zeroed = file, file.start
        is_far = file.end + STEP_BYTES // 2 <= self._zeroed or self._zeroed == file.start + self._file_bytes
        if is_far or self._is_writing or file.end - begun > MAX_ROUND_BYTES:
            return False
        self._is_writing = True
        return True

    def stop(self) -> None:
        """The active file gets no more frames; the caller holds the lock."""
        self._file = None

    def write(self) -> None:
        """Write and sync the next zeros; any thread."""
        try:
            with self._lock:
                file = self._file
            if file is not None:
                self._write(file)
        except StorageError as error:
            if not error.is_full:  # syncs are slower without zeros, and nothing else
                raise
        finally:
            self._is_writing = False

    def _write(self, file: LogFile) -> None:
        handle = self._disk.open(file.path, write=True)
        zeros = bytes(_PIECE_BYTES)
        limit = min(max(file.end, self._zeroed) + STEP_BYTES, file.start + self._file_bytes)
        unsynced = 0
        while self._zeroed < limit:
            with self._lock:
                if self._file is not file:
                    return
                at = max(file.end, self._zeroed)
                end = min(at - at % _PIECE_BYTES + _PIECE_BYTES, limit)
                if end > at:
                    handle.pwrite(memoryview(zeros)[: end - at], at - file.start)
                self._zeroed = max(end, at)
            unsynced += end - at
            if unsynced >= _SYNCED_BYTES or end >= limit:
                handle.sync()
                unsynced = 0
