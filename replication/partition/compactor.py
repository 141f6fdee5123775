"""Which log is compacted next, and what becomes of the segments that a cleaner has made.

RULES    1. The dirtiest log that is due comes first, and next again as soon as one is done; each cleaner does one at a
            time, and no two do the same.
         2. What a measure would wait for is read by a reader thread. A log that nobody uses is opened once for it, and
            closed again when there is nothing to clean away; not even that where its checkpoints say so already, or where
            it would have to be recovered: that is for who uses it.
         3. New segments are put in place one by one while the cleaner waits: only if their sources are still there, nothing
            was cut and the topic is still compacted. Else the cleaning is given up, without harm.
         4. A log that cannot be compacted is named in one log line and left alone until the broker starts again. A failing
            disk takes its directory offline.
         5. Where a disk is full, or a cleaner was killed, that log rests, each time twice as long, and is then tried again.
         6. Retention leaves a log alone while it is being cleaned.
NOT HERE What is dirty (storage/compaction/cleanable.py), the cleaning (cleaning.py), processes (broker/io/compaction_process.py), how often
         to look (broker/node/scheduled_tasks.py).
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from protocol.errors import KafkaError
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.compaction.cleanable import (
    Dirt,
    bounds_of,
    is_spotless,
    job_of,
    last_records,
    may_be_due,
    measure,
    wants_sync,
)
from storage.compaction.cleaner_job import Cleaned, Failed, Job, Replacement, Resources, failed
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import Log

_log = logging.getLogger("barnabas.compaction")

FIRST_REST_MS: Final = 15_000
LONGEST_REST_MS: Final = 600_000

_FULL = (errno.ENOSPC, errno.EDQUOT)

Replace = Callable[[Replacement, Callable[[bool], None]], None]
"""Told of a segment that lies ready; answers, perhaps later, whether it is in its place and the next may come."""
Done = Callable[[Cleaned | Failed | None], None]
"""Told how a job ended; None when it was given up because `Replace` said no."""


class Cleaner(Protocol):
    """Does one job at a time, wherever."""

    def start(self, job: Job, replace: Replace, done: Done) -> None:
        """Do a job; both are called on the thread of the caller."""

    def rest(self) -> None:
        """Nothing is to be done for a while."""


class _Rest(NamedTuple):
    """Why a log is left alone for a while."""

    since_ms: int
    length_ms: int

    def lasts(self, wall_ms: int, times: int = 1) -> bool:
        """Whether it is not over yet; when the clock was put back, it is."""
        return self.since_ms <= wall_ms < self.since_ms + times * self.length_ms


class Compactor:
    """Keeps the compacted partitions of one broker clean."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cleaners: Sequence[Cleaner],
        resources: Resources,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` tells the wall's time."""
        self._replicas = replicas
        self._cleaners = list(cleaners)
        self._idle = list(cleaners)
        self._resources = resources
        self._now_ms = now_ms
        self._is_stopped = False
        self._measuring = 0
        self._is_beginning = False
        self._paths: set[str] = set()  # where cleaners are at work, also for a topic that is gone meanwhile
        self._due: list[tuple[float, Partition, Dirt]] = []
        self._rests: dict[str, _Rest] = {}

    def use(self, cleaners: Sequence[Cleaner], resources: Resources) -> None:
        """Work with others from now on; who has those of before stops them, and what they were at is begun anew."""
        self._cleaners = list(cleaners)
        self._idle = list(cleaners)
        self._resources = resources

    def stop(self) -> None:
        """Begin nothing more, and put nothing in place any more."""
        self._is_stopped = True

    def look(self) -> None:
        """Look for something to do, unless that is under way or every cleaner is at work."""
        if self._measuring or not self._idle or self._is_stopped:
            return
        wall_ms = self._now_ms()
        self._rests = {path: rest for path, rest in self._rests.items() if rest.lasts(wall_ms, times=2)}
        resting = {path for path, rest in self._rests.items() if rest.lasts(wall_ms)}
        candidates = [
            p for p in self._replicas.partitions.values() if p.log.path not in resting and self._is_candidate(p)
        ]
        self._measuring = 1 + len(candidates)
        for partition in candidates:
            self._measure(partition, wall_ms, was_open=partition.log.is_open)
        self._measured()

    # ------------------------------------------------------------ choosing
    def _is_candidate(self, partition: Partition) -> bool:
        log = partition.log
        return (
            log.config.is_compacted
            and not partition.is_offline
            and log.path not in self._paths
            and not log.is_uncleanable
            and (log.is_open or _is_worth_opening(log))
        )

    def _measure(self, partition: Partition, wall_ms: int, *, was_open: bool) -> None:
        log = partition.log
        try:
            engine = log.open(may_block=False)
            if wants_sync(log):
                self._replicas.sync(partition)  # for the next look
            bounds = bounds_of(log, wall_ms)
            if may_be_due(engine, bounds):
                dirt = log.look("dirt", partial(measure, bounds=bounds), may_block=False)
                if dirt.is_due(log.config):
                    self._due.append((dirt.ratio, partition, dirt))
            elif not was_open and is_spotless(engine, bounds):
                log.is_spotless = log.release()
        except WouldBlock as blocked:
            self._replicas.await_disk(partition, blocked, lambda: self._measure(partition, wall_ms, was_open=was_open))
            return
        except StorageError as error:
            self._replicas.directory_failed(log.directory, error)
        except KafkaError as error:
            _leave_alone(log, str(error))
        self._measured()

    def _measured(self) -> None:
        """One more is measured; after the last, begin with the dirtiest."""
        self._measuring -= 1
        if self._measuring:
            return
        due, self._due = sorted(self._due, key=lambda entry: entry[0]), []
        if not due:
            for cleaner in self._idle:
                cleaner.rest()
            return
        self._is_beginning = True
        begun: list[_Run] = []
        while due and self._idle and not self._is_stopped:
            _, partition, dirt = due.pop()
            self._paths.add(partition.log.path)
            begun.append(_Run(self, self._replicas, partition, dirt, self._idle.pop()))
            begun[-1].begin()
        self._is_beginning = False
        if any(run.has_cleaned for run in begun):
            self.look()

    # ------------------------------------------------------------ for a run
    @property
    def is_stopped(self) -> bool:
        """Whether nothing is to be changed any more."""
        return self._is_stopped

    def now_ms(self) -> int:
        """The wall's time."""
        return self._now_ms()

    def rest(self, path: str) -> int:
        """Leave a log alone for a while (rule 5); for how many milliseconds."""
        before = self._rests.get(path)
        length_ms = FIRST_REST_MS if before is None else min(2 * before.length_ms, LONGEST_REST_MS)
        self._rests[path] = _Rest(self._now_ms(), length_ms)
        return length_ms

    def job(self, log: Log, dirt: Dirt) -> Job:
        """What a cleaner is to do.

        Raises:
            WouldBlock: the aborted transactions have to be read first.
        """
        records, wall_ms, resources = last_records(log.producers), self._now_ms(), self._resources
        return log.look("job", lambda engine: job_of(engine, log, dirt, records, wall_ms, resources), may_block=False)

    def ended(self, cleaner: Cleaner, path: str, *, has_cleaned: bool) -> None:
        """A cleaner is free again: for the next at once (rule 1), unless it has come to nothing.

        One that was replaced has left its log to the others.
        """
        is_ours = cleaner in self._cleaners
        if is_ours:
            self._idle.append(cleaner)
        self._paths.discard(path)
        if has_cleaned:
            self._rests.pop(path, None)
        if (has_cleaned or not is_ours) and not self._is_beginning:
            self.look()


class _Run:
    """One cleaning of one partition."""

    def __init__(
        self, compactor: Compactor, replicas: ReplicaManager, partition: Partition, dirt: Dirt, cleaner: Cleaner
    ) -> None:
        self._compactor = compactor
        self._replicas = replicas
        self._partition = partition
        self._log = partition.log
        self._path = partition.log.path
        self._dirt = dirt
        self._cleaner = cleaner
        self._cuts = partition.log.cuts
        self._job: Job | None = None
        self.has_cleaned = False
        """Whether it has ended well."""

    def begin(self) -> None:
        self._log.is_being_cleaned = True
        self._start()

    def _start(self) -> None:
        try:
            self._job = job = self._compactor.job(self._log, self._dirt)
        except WouldBlock as blocked:
            self._replicas.await_disk(self._partition, blocked, self._start)
        except StorageError as error:
            self._end(failed(error))
        except KafkaError as error:
            self._end(failed(error))
        else:
            self._cleaner.start(job, self._replace, self._end)

    def _replace(self, new: Replacement, answer: Callable[[bool], None]) -> None:
        log = self._log
        if not self._is_current:
            answer(False)
            return
        try:
            log.open(may_block=False)
            is_in_place = log.replace(new.replaced, new.size, self._compactor.now_ms(), has_aborted=new.has_aborted)
        except WouldBlock as blocked:
            self._replicas.await_disk(self._partition, blocked, lambda: self._replace(new, answer))
        except KafkaError:
            answer(False)  # it went offline
        except StorageError as error:
            self._replicas.directory_failed(log.directory, error)
            answer(False)
        else:
            answer(is_in_place)

    def _end(self, outcome: Cleaned | Failed | None) -> None:
        log = self._log
        log.is_being_cleaned = False
        if isinstance(outcome, Cleaned):
            if self._is_current:
                self.has_cleaned = True
                log.first_dirty_offset = outcome.next_dirty_offset
                _report(log, self._dirt, outcome)
        elif isinstance(outcome, Failed) and self._is_current:
            self._fail(outcome)
        self._compactor.ended(self._cleaner, self._path, has_cleaned=self.has_cleaned)

    def _fail(self, outcome: Failed) -> None:
        log = self._log
        if outcome.is_damage:
            _leave_alone(log, outcome.text)
        elif outcome.errno is None or outcome.errno in _FULL:
            seconds = math.ceil(self._compactor.rest(self._path) / 1000)
            _log.warning("%s is not compacted for the next %d s: %s", log.name, seconds, outcome.text)
        elif self._has_sources():
            error = StorageError("compact", outcome.path, OSError(outcome.errno or 0, outcome.text))
            self._replicas.directory_failed(log.directory, error)

    def _has_sources(self) -> bool:
        """Whether what the cleaner was to read is still there."""
        try:
            return self._job is None or set(self._job.segments) <= set(self._log.open(may_block=False).segments())
        except (WouldBlock, KafkaError):
            return False

    @property
    def _is_current(self) -> bool:
        """Whether the partition is still what it was when the run began."""
        partition, log = self._partition, self._log
        is_here = self._replicas.partitions.get(partition.key) is partition and partition.log is log
        is_same = is_here and not partition.is_offline and log.cuts == self._cuts
        return is_same and log.config.is_compacted and not self._compactor.is_stopped


def _is_worth_opening(log: Log) -> bool:
    known = log.checkpoint
    is_dirty = known.recovery_point > max(known.log_start_offset, known.first_dirty_offset)
    return is_dirty and not log.is_spotless and not log.needs_recovery


def _leave_alone(log: Log, why: str) -> None:
    _log.warning("%s cannot be compacted and is left as it is: %s", log.name, why)
    log.is_uncleanable = True


def _report(log: Log, dirt: Dirt, cleaned: Cleaned) -> None:
    _log.info(
        "compacted %s from %d to %d: %d of %d bytes and %d of %d records are left",
        log.name,
        dirt.first_dirty_offset,
        cleaned.next_dirty_offset,
        cleaned.bytes_written,
        cleaned.bytes_read,
        cleaned.records_written,
        cleaned.records_read,
    )
