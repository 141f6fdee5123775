"""An engine in service: files that nobody is amid using may be closed, and are opened again at their next use.

NOT HERE Which are closed, and when (storage/io/file_handle_cache.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from storage.io.file_handle_cache import Holder, OpenFiles


class Service:
    """Tells who closes files of the segments that have some open, from the beginning of the service to its end."""

    __slots__ = ("_close", "_open_files")

    def __init__(self, open_files: OpenFiles | None) -> None:
        """`open_files`: who closes them; None: nobody."""
        self._open_files = open_files
        self._close: Callable[[Any], bool] | None = None

    def begin(self, opened: Iterable[Holder], close: Callable[[Any], bool]) -> None:
        """Let `close` be called for what is open, and will be."""
        self._close = close
        for holder in opened:
            self.has_opened(holder)

    def end(self, opened: Iterable[Holder]) -> None:
        """No longer."""
        self._close = None
        for holder in opened:
            self.has_closed(holder)

    def has_opened(self, holder: Holder) -> None:
        """Somebody has files open."""
        if self._open_files is not None and self._close is not None:
            self._open_files.hold(holder, self._close)

    def has_closed(self, holder: Holder) -> None:
        """Has none any more."""
        if self._open_files is not None:
            self._open_files.forget(holder)
