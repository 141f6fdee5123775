"""The files of a commit log that are created ahead of their use, so that an append does not wait for a creation.

RULES    1. After the active file, the next `FILES_AHEAD` files exist. Their names are durable before their first frame.
         2. Files are created and deleted under one lock, which is held while the disk works. The list of files has another
            lock, which is held for no operation of the disk. The first one is taken before the second.
         3. `take` waits for the disk only if no file is left: for a creation that is under way, else for its own.
            `refill` then creates no further file, so it waits for one creation at most.
         4. Only files with all their space are kept: cleaning and appends count on it when the disk is full.
NOT HERE When files are taken, and how much space a full disk must keep (commit_log.py).
         Why: docs/decisions/0117-files-ahead-and-retention-off-the-event-loop.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from storage.commitlog.frames import file_header
from storage.commitlog.log_file import UnusedFile, log_file_name
from storage.commitlog.sealing import queue_path
from storage.io.disk import Disk
from storage.io.path_guard import LockContext

FILES_AHEAD: Final = 2


class FilesAhead:
    """The unused files of one commit log, in the order of their starts."""

    __slots__ = (
        "_creating", "_directory", "_disk", "_file_bytes", "_files", "_is_awaited", "_lock", "_next_start", "_random_bytes",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_bytes: int,
        random_bytes: Callable[[int], bytes],
        new_lock: Callable[[], LockContext],
    ) -> None:
        """Create the object; creates no file."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._random_bytes = random_bytes
        self._creating = new_lock()
        self._lock = new_lock()
        self._files: list[UnusedFile] = []
        self._next_start = 0  # of the first unused file
        self._is_awaited = False  # `take` waits for a creation

    def __len__(self) -> int:
        return len(self._files)

    def adopt(self, files: list[UnusedFile]) -> None:
        """Take over the files that a start has found."""
        self._files = files

    def clear(self) -> None:
        """Close the files; the next start finds them."""
        with self._lock:
            self._files.clear()

    # ---- use: on one thread at a time --------------------------------------------------------------------

    def skip_to(self, start: int) -> None:
        """The next file to take has this start: delete those before it, or all if none has it.

        Such files exist after an append that is larger than a file, and if another process used another file size.
        """
        with self._lock:
            self._next_start = start
            if not self._files or self._files[0].start == start:
                return
        with self._creating:
            with self._lock:
                starts = [file.start for file in self._files]
                first = starts.index(start) if start in starts else len(starts)
                skipped, self._files = self._files[:first], self._files[first:]
            for file in skipped:
                self._delete(file)

    def take(self, start: int) -> UnusedFile:
        """The file with this start; call `skip_to` before, and `refill` in another thread after it."""
        file = self._pop(start)
        if file is None:
            self._is_awaited = True
            with self._creating:
                self._is_awaited = False
                file = self._pop(start)
                if file is None:
                    file = self._create(start)
                    self._next_start = start + self._file_bytes
        return file

    def _pop(self, start: int) -> UnusedFile | None:
        with self._lock:
            if not self._files or self._files[0].start != start:
                return None
            self._next_start = start + self._file_bytes
            return self._files.pop(0)

    # ---- creation and deletion: any thread ---------------------------------------------------------------

    def refill(self) -> None:
        """Create files while there are fewer than `FILES_AHEAD`, and space for one."""
        while not self._is_awaited and self._create_last():
            pass

    def delete_last(self, kept: int) -> bool:
        """Delete the last file if there are more than `kept`; returns whether it did."""
        with self._creating:
            with self._lock:
                if len(self._files) <= kept:
                    return False
                last = self._files.pop()
            self._delete(last)
            return True

    def _create_last(self) -> bool:
        """Create the file after the last one; False if none is missing, or there is no space for it."""
        with self._creating:
            with self._lock:
                start, is_complete = self._start_after, len(self._files) >= FILES_AHEAD
            if is_complete or self._disk.space(self._directory)[1] < self._file_bytes:
                return False
            created = self._create(start)
            with self._lock:
                is_kept = created.is_allocated and start == self._start_after  # else it was skipped during the creation
                if is_kept:
                    self._files.append(created)
            if not is_kept:
                self._delete(created)
            return created.is_allocated

    @property
    def _start_after(self) -> int:
        return self._files[-1].start + self._file_bytes if self._files else self._next_start

    def _create(self, start: int) -> UnusedFile:
        path = f"{self._directory}/{log_file_name(start)}"
        file_id = self._random_bytes(16)
        self._disk.unlink(queue_path(path), missing_ok=True)  # that of a lost file would be taken for its own
        self._disk.unlink(path, missing_ok=True)
        handle = self._disk.open(path, write=True, create=True)
        handle.pwrite(file_header(file_id, start), 0)
        is_allocated = handle.allocate(self._file_bytes)
        handle.sync()
        self._disk.sync_dir(self._directory)
        return UnusedFile(start, file_id, handle, is_allocated)

    def _delete(self, file: UnusedFile) -> None:
        self._disk.unlink(file.handle.path)
