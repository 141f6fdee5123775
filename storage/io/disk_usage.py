"""What a log directory holds, in bytes: a look for a thread.

RULES    1. Logs that are open know their size; of the others the files are looked at, and none is opened.
         2. A log that is taken away meanwhile, or made at this moment, has no size, nor has a file of it;
            that is no failure of the disk.
NOT HERE Which logs there are (log_manager.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from errno import ENOENT
from typing import Final, TypeVar

from storage.io.disk import Disk, StorageError

T = TypeVar("T")

_BATCHES: Final = ".log"  # how names of files end that hold batches


class Usage:
    """Of one log directory; known when `run` is over."""

    def __init__(self, disk: Disk, directory: str, logs: Iterable[str]) -> None:
        """`logs` are the paths of those whose size is to be found out."""
        self._disk = disk
        self._directory = directory
        self._logs = tuple(logs)
        self.total_bytes = self.usable_bytes = -1
        """Of its file system, and what may still be written there."""
        self.sizes: dict[str, int] = {}
        """By the paths of logs."""

    def run(self) -> None:
        """Ask the file system.

        Raises:
            StorageError: it does not answer.
        """
        self.total_bytes = self._disk.total_bytes(self._directory)
        self.usable_bytes = self._disk.free_bytes(self._directory)
        self.sizes = {path: self._size_of(path) for path in self._logs}

    def _size_of(self, path: str) -> int:
        names = self._if_there(self._disk.listdir, path) or []
        return sum(self._if_there(self._disk.size, f"{path}/{name}") or 0 for name in names if name.endswith(_BATCHES))

    @staticmethod
    def _if_there(ask: Callable[[str], T], path: str) -> T | None:
        try:
            return ask(path)
        except StorageError as error:
            if error.errno != ENOENT:
                raise
            return None
