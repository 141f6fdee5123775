"""Retention of all logs, a few segments per step.

RULES    1. A log that was not open is closed again.
         2. A log directory whose disk fails is reported; another error of a log ends only its retention.
NOT HERE Which segments of a log are deleted (storage/log/retention.py), when (broker/node/scheduled_tasks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from protocol.errors import KafkaError
from storage.io.disk import StorageError
from storage.log.log import Log
from storage.log.retention import is_retention_due, retain

_log = logging.getLogger("barnabas.storage")

OnFailure = Callable[[str, StorageError], object]
"""Called with a log directory whose disk has failed."""


def retain_all(logs: Iterable[Log], wall_ms: int, on_failure: OnFailure) -> Iterator[Log]:
    """Apply retention; each step yields the log of which segments were deleted."""
    for log in logs:
        skips_queue = log.files.disk_space.is_full and log.is_open  # else the log's files may not be created yet
        is_busy = log.is_unavailable if skips_queue else log.is_busy
        if is_busy or not is_retention_due(log, wall_ms):
            continue
        was_open = log.is_open
        while has_more := _retain_some(log, wall_ms, on_failure, was_open=was_open):
            yield log
            if not log.is_open or log.is_being_cleaned:
                break
        if not has_more:
            yield log


def _retain_some(log: Log, wall_ms: int, on_failure: OnFailure, *, was_open: bool) -> bool:
    """Returns whether more can be deleted."""
    has_more = False
    try:
        has_more = retain(log, wall_ms)
        if not (was_open or has_more):
            log.release()
    except StorageError as error:
        if not error.is_full:  # else retention runs when there is space
            on_failure(log.directory, error)
    except KafkaError as error:
        _log.warning("retention of %s failed: %s", log.name, error.message or error.code.name)
    return has_more
