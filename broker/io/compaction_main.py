"""A helper process: compacts closed files for a broker that must not spend its own time on it (design D6).

FORMAT   standard input and output carry pickled values one behind the other:
             broker  Job                          then True or False after each Replacement
             helper  Replacement, after each of which it waits; at the end Cleaned, Failed, or None when told False
RULES    1. The broker is the only one who talks to it, over pipes that the broker made: pickles are safe here.
         2. It ends when its input does: with the broker, however that ends.
         3. So many bytes a second are read and written on average, counted from the start of each job.
         4. It is nice: the broker and everybody else come first.
NOT HERE The compaction (storage/compaction), the other end (`compaction_process.py`).
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
from storage.compaction.cleaner_job import Cleaned, Failed, Job, Progress, Replacement, failed
from storage.io.disk import Disk, StorageError

NICENESS = 10
LONGEST_WAIT_S = 60.0
"""At a stretch; what is missing is waited for after the next piece."""


def main(bytes_per_second: float) -> None:
    """Serve the broker at the other end of standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the broker, which ends us
    os.nice(NICENESS)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (job := _receive(source)) is not None:
        assert isinstance(job, Job)
        outcome = _attempt(job, bytes_per_second, source, target)
        _send(target, outcome)


def _attempt(job: Job, bytes_per_second: float, source: BinaryIO, target: BinaryIO) -> Cleaned | Failed | None:
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
                    discard(disk, job.path)
                    return None
            elif isinstance(step, Progress):
                moved += step.size
                _wait(source, started + moved / bytes_per_second - time.monotonic())
            else:
                return step
    except (KafkaError, StorageError) as error:
        return failed(error)
    raise AssertionError("a cleaning ends with Cleaned")


def _wait(source: BinaryIO, seconds: float) -> None:
    """Wait so long; end at once when the broker has ended (it says nothing before it was asked)."""
    if select.select([source], [], [], min(max(0.0, seconds), LONGEST_WAIT_S))[0]:
        raise SystemExit(0)


def _receive(source: BinaryIO) -> object:
    try:
        return pickle.load(source)  # noqa: S301  # rule 1
    except EOFError:
        return None


def _send(target: BinaryIO, said: object) -> None:
    """Say something; end where nobody listens any more, and leave what lies about to the next start."""
    try:
        pickle.dump(said, target, pickle.HIGHEST_PROTOCOL)
        target.flush()
    except BrokenPipeError:
        os._exit(0)  # not to be told again by the closing of standard output
