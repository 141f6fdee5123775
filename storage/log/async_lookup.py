"""Lookups in an open log that need the disk: another thread runs them on a copy of the engine.

RULES    1. A result is delivered to the callers that requested it during the lookup, and is then discarded.
         2. After a truncation or close the results of pending lookups are discarded, and their disk errors are ignored.
NOT HERE Finding a batch for a Fetch, whose result is cached (segments/lookups.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from protocol.errors import KafkaError
from storage.engine import Engine
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup

T = TypeVar("T")


class AsyncLookups:
    """The lookups in one engine."""

    __slots__ = ("_engine", "_pending", "_results")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: dict[Hashable, DiskLookup] = {}
        self._results: dict[Hashable, object] = {}

    def get(self, key: Hashable, find: Callable[[Engine], T]) -> T | DiskLookup:
        """The result of `find` on a copy of the engine.

        Raises:
            KafkaError: the data read is invalid.
        """
        if key in self._results:
            result = self._results[key]
            if isinstance(result, KafkaError):
                raise result
            return cast("T", result)
        if key not in self._pending:
            self._pending[key] = self._new_lookup(key, find)
        return self._pending[key]

    def cancel(self) -> None:
        """Discard all pending lookups (rule 2)."""
        pending, self._pending = self._pending, {}
        pending.clear()  # each lookup refers to this dict

    def _new_lookup(self, key: Hashable, find: Callable[[Engine], object]) -> DiskLookup:
        engine, pending, copy = self._engine, self._pending, self._engine.copy()

        def is_obsolete() -> bool:
            return pending is not self._pending or engine.start_offset != copy.start_offset

        def run() -> object:
            try:
                return find(copy)
            except StorageError:
                if is_obsolete():
                    return None
                raise

        def on_result(result: object) -> None:
            pending.pop(key, None)
            if not is_obsolete():
                engine.adopt_files(copy)
                self._results[key] = result

        return DiskLookup(run, on_result, lambda: self._results.pop(key, None))
