"""Changes of files that need not be made at this moment, on their way to the threads of their directory.

RULES    1. They are made in the order of the writes to it; names of partitions' directories in an order of their own.
         2. What makes room on a full disk goes past all that waits for it, unless even a new name finds none.
NOT HERE What is changed (`storage/io/deferred_file_ops.py`), which thread it is (`broker/io/io_thread_pool.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replication.io_executor import Worker
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import Change
from storage.io.disk import StorageError


class FileChanges:
    """Of all logs."""

    def __init__(
        self, log_manager: LogManager, worker: Worker, directory_failed: Callable[[str, StorageError], None]
    ) -> None:
        self._worker = worker
        self._directory_failed = directory_failed
        log_manager.later = self._change
        log_manager.name_later = self._name
        log_manager.room_later = self._make_room

    def _change(self, directory: str, change: Change) -> None:
        self._worker.write(directory, 0, change, partial(self._changed, directory))

    def _name(self, directory: str, change: Change) -> None:
        self._worker.name(directory, change, partial(self._changed, directory))

    def _make_room(self, directory: str, change: Change) -> None:
        def made(error: StorageError | None) -> None:
            if error is not None and error.is_full:
                self._change(directory, change)
            else:
                self._changed(directory, error)

        self._worker.background(directory, change, made)

    def _changed(self, directory: str, error: StorageError | None) -> None:
        if error is not None:
            self._directory_failed(directory, error)
