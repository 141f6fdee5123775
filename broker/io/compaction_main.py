"""The compaction process: compacts closed segments outside of the broker's process.

FORMAT   standard input and output carry consecutive pickled values:
             broker    Job                          then True or False after each Replacement
             process   Replacement, then it waits for the answer; finally Cleaned, Failed, or None after False
RULES    1. Only the broker that started the process has the other ends of the pipes, so pickles are safe.
         2. The process exits at the end of its input: when the broker closes it, or dies.
         3. Reads and writes are limited to `bytes_per_second` on average, from the start of each job.
         4. It runs with a high nice value, so the broker has priority.
NOT HERE The compaction (storage/compaction), the broker's side (`compaction_process.py`).
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
from typing import BinaryIO

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

NICENESS = 10
MAX_WAIT_S = 60.0
"""The longest throttle wait; the rest of the time is waited after the next piece."""


def main(bytes_per_second: float) -> None:
    """Runs jobs from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process
    os.nice(NICENESS)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (job := _receive(source)) is not None:
        assert isinstance(job, CleanerJob)
        outcome = _run(job, bytes_per_second, source, target)
        _send(target, outcome)


def _run(
    job: CleanerJob, bytes_per_second: float, source: BinaryIO, target: BinaryIO
) -> CleaningResult | CleaningFailed | None:
    disk = Disk()
    started, moved = time.monotonic(), 0
    try:
        for step in clean(disk, job):
            if isinstance(step, Replacement):
                _send(target, step)
                answer = _receive(source)
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


def _receive(source: BinaryIO) -> object:
    try:
        return pickle.load(source)  # noqa: S301  # rule 1
    except EOFError:
        return None


def _send(target: BinaryIO, message: object) -> None:
    """Sends a message; exits if the broker has ended. The next start removes the unfinished files."""
    try:
        pickle.dump(message, target, pickle.HIGHEST_PROTOCOL)
        target.flush()
    except BrokenPipeError:
        os._exit(0)  # without flushing standard output, which would fail again
