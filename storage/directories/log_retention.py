"""Retention of all logs, a few segments per step.

RULES    1. A log that was not open is closed again.
         2. A step reads nothing from the disk: before it retries, the caller runs the lookup of the step before in a thread.
         3. A log directory whose disk fails is reported; another error of a log ends only its retention.
NOT HERE Which segments of a log are deleted (storage/log/retention.py), when (broker/node/scheduled_tasks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from protocol.errors import KafkaError
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log
from storage.log.retention import is_retention_due, retain

_log = logging.getLogger("barnabas.storage")

OnFailure = Callable[[str, StorageError], None]
"""Called with a log directory whose disk has failed."""


class RetentionStep(NamedTuple):
    """What the caller does before the next step."""

    log: Log
    lookup: DiskLookup | None
    """Run and finish it; None if segments of the log may have been deleted."""


RetentionSteps = Generator[RetentionStep, bool | None, None]
"""`send(False)` skips the log: its lookup found no space."""


def retain_all(logs: Iterable[Log], wall_ms: int, on_failure: OnFailure) -> RetentionSteps:
    """Apply retention to logs, one after the other."""
    for log in logs:
        # Pending operations may rename the files of a closed log.
        is_busy = log.is_unavailable if log.is_open else log.is_busy
        if is_busy or not is_retention_due(log, wall_ms):
            continue
        was_open, may_have_more = log.is_open, True
        while may_have_more and not log.is_unavailable:
            result = _retain_some(log, wall_ms, on_failure, was_open=was_open)
            if isinstance(result, DiskLookup):
                if (yield RetentionStep(log, result)) is False:
                    break
            else:
                may_have_more = result
                yield RetentionStep(log, None)


def _retain_some(log: Log, wall_ms: int, on_failure: OnFailure, *, was_open: bool) -> bool | DiskLookup:
    """Returns whether more can be deleted."""
    try:
        result = retain(log, wall_ms)
        if not (was_open or result):
            log.release()
    except StorageError as error:
        if not error.is_full:  # else retention runs when there is space
            on_failure(log.directory, error)
    except KafkaError as error:
        _log.warning("retention of %s failed: %s", log.name, error.message or error.code.name)
    else:
        return result
    return False
