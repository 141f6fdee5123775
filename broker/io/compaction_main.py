"""The compaction process: compacts closed segments outside of the broker's process.

FORMAT   standard input and output carry consecutive pickled values:
             broker    Job                          then True or False after each Replacement
             process   Replacement, then it waits for the answer; finally Cleaned, Failed, or None after False
RULES    1. Reads and writes are limited to `bytes_per_second` on average, from the start of each job.
         2. When the broker ends during a job, the unfinished files remain; the next start removes them.
NOT HERE The compaction (storage/compaction), the broker's side (`compaction_process.py`), the pipes (`helper_main.py`).
"""

from __future__ import annotations

import select
import time
from typing import BinaryIO

from broker.io.helper_main import BACKGROUND, begin, receive, send
from protocol.errors import KafkaError
from storage.compaction.cleaner import clean, discard
from storage.compaction.cleaner_job import (
    BytesProcessed,
    CleanerJob,
    CleaningFailed,
    CleaningResult,
    Replacement,
    failure_of,
)
from storage.io.disk import Disk, StorageError

MAX_WAIT_S = 60.0
"""The longest throttle wait; the rest of the time is waited after the next piece."""


def main(bytes_per_second: str) -> None:
    """Runs jobs from standard input until it ends."""
    source, target = begin(BACKGROUND)
    while (job := receive(source)) is not None:
        assert isinstance(job, CleanerJob)
        send(target, _run(job, float(bytes_per_second), source, target))


def _run(
    job: CleanerJob, bytes_per_second: float, source: BinaryIO, target: BinaryIO
) -> CleaningResult | CleaningFailed | None:
    disk = Disk()
    started, moved = time.monotonic(), 0
    try:
        for step in clean(disk, job):
            if isinstance(step, Replacement):
                send(target, step)
                answer = receive(source)
                if answer is None:
                    raise SystemExit(0)
                if not answer:
                    discard(disk, job.path, step.replaced[0].base_offset)
                    return None
            elif isinstance(step, BytesProcessed):
                moved += step.size
                _wait(source, started + moved / bytes_per_second - time.monotonic())
            else:
                return step
    except (KafkaError, StorageError) as error:
        return failure_of(error)
    raise AssertionError("a cleaning ends with Cleaned")


def _wait(source: BinaryIO, seconds: float) -> None:
    """Waits; exits when the broker has ended, which makes the pipe readable."""
    if select.select([source], [], [], min(max(0.0, seconds), MAX_WAIT_S))[0]:
        raise SystemExit(0)
