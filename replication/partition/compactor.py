"""Log compaction of one broker: chooses the next log, and swaps in the segments that a cleaner wrote.

RULES    1. The log with the highest dirty ratio is cleaned first. Each cleaner cleans one log at a time; no two clean the same.
            A successful run is followed by the next check at once.
         2. Measuring reads from disk on a reader thread. An unused log is opened once to be measured, and closed again if
            there is nothing to clean. It is not opened if its checkpoints say that it is clean, or if it needs recovery.
         3. New segments are swapped in one by one while the cleaner waits, if their sources still exist, the log was not
            truncated and the topic is still compacted. Otherwise the run is discarded.
         4. A log that cannot be compacted is logged once and skipped until restart. A failing disk takes its directory offline.
         5. After a full disk or a killed cleaner, that log is skipped for a back-off time, which doubles each time.
         6. Retention skips a log while it is being cleaned. No cleaning begins of a log that a move is about to replace.
NOT HERE Dirty ratio (`storage/compaction/cleanable.py`), cleaning (`cleaner.py`), the cleaner process
         (`broker/io/compaction_process.py`), the schedule (`broker/node/scheduled_tasks.py`).
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from protocol.errors import KafkaError
from replication.completion import Completion, all_done
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.compaction.cleanable import (
    LogToClean,
    bounds_of,
    last_records,
    make_job,
    may_be_due,
    measure,
    needs_flush,
    nothing_to_clean,
)
from storage.compaction.cleaner_job import (
    CleanerJob,
    CleanerResources,
    CleaningFailed,
    CleaningResult,
    Replacement,
    failure_of,
)
from storage.engine import Compactable
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log

_log = logging.getLogger("barnabas.compaction")

INITIAL_BACKOFF_MS: Final = 15_000
MAX_BACKOFF_MS: Final = 600_000

_FULL = (errno.ENOSPC, errno.EDQUOT)

Replace = Callable[[Replacement], Completion[bool]]
"""Receives a finished segment; the result is whether it was swapped in and the cleaner may continue."""
Outcome = CleaningResult | CleaningFailed | None
"""The result of a job; None if `Replace` rejected a segment."""


class Cleaner(Protocol):
    """Cleans one log at a time."""

    def start(self, job: CleanerJob, replace: Replace) -> Completion[Outcome]:
        """Start a job; `replace` runs on the caller's thread."""

    def on_idle(self) -> None:
        """No log is due."""


class _Backoff(NamedTuple):
    """A log that is skipped for a while."""

    since_ms: int
    length_ms: int

    def is_active(self, wall_ms: int, factor: int = 1) -> bool:
        """Whether the back-off time, multiplied by `factor`, has not passed; False if the clock was set back."""
        return self.since_ms <= wall_ms < self.since_ms + factor * self.length_ms


class _DueLog(NamedTuple):
    """A measured log whose compaction is due."""

    partition: Partition
    to_clean: LogToClean


class Compactor:
    """Keeps the compacted partitions of one broker clean."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cleaners: Sequence[Cleaner],
        resources: CleanerResources,
        wall_ms: Callable[[], int],
    ) -> None:
        """`wall_ms` returns the wall-clock time."""
        self._replicas = replicas
        self.set_cleaners(cleaners, resources)
        self.wall_ms = wall_ms
        self.is_stopped = False
        self._is_measuring = False
        self._is_starting = False
        self._paths: set[str] = set()  # logs being cleaned, including those of deleted topics
        self._due: list[_DueLog] = []
        self._backoffs: dict[str, _Backoff] = {}

    def set_cleaners(self, cleaners: Sequence[Cleaner], resources: CleanerResources) -> None:
        """Use other cleaners. The caller stops the old ones; their logs are cleaned again."""
        self._cleaners = list(cleaners)
        self._idle = list(cleaners)
        self._resources = resources

    def stop(self) -> None:
        """Start no run and swap in no segment any more."""
        self.is_stopped = True

    def check(self) -> None:
        """Measure the candidates and start cleaning, unless measuring is under way or every cleaner is busy."""
        if self._is_measuring or not self._idle or self.is_stopped:
            return
        wall_ms = self.wall_ms()
        self._backoffs = {
            path: backoff for path, backoff in self._backoffs.items() if backoff.is_active(wall_ms, factor=2)
        }
        backing_off = {path for path, backoff in self._backoffs.items() if backoff.is_active(wall_ms)}
        candidates = [
            p for p in self._replicas.partitions.values() if p.log.path not in backing_off and self._is_candidate(p)
        ]
        self._is_measuring = True
        all_done([self._measure(partition, wall_ms) for partition in candidates]).then(lambda _: self._start_due())

    # ------------------------------------------------------------ choosing
    def _is_candidate(self, partition: Partition) -> bool:
        log = partition.log
        return (
            log.config.is_compacted
            and not partition.is_offline
            and log.path not in self._paths
            and not log.is_uncleanable
            and not log.is_being_replaced
            and not log.files.has_pending_ops  # perhaps the swap of the last compaction, which needs its files
            and (log.is_open or _is_worth_opening(log))
        )

    def _measure(self, partition: Partition, wall_ms: int) -> Completion[None]:
        """Add a log to the due ones if it is."""
        log, was_open = partition.log, partition.log.is_open

        def on_measured(measured: Completion[None]) -> None:
            if measured.error is not None and not log.is_offline:
                _mark_uncleanable(log, str(measured.error))

        measured = self._replicas.lookup(*partition.key, partial(self._measure_log, wall_ms=wall_ms, was_open=was_open))
        return measured.handle(on_measured)

    def _measure_log(self, partition: Partition, *, wall_ms: int, was_open: bool) -> DiskLookup | None:
        opened = partition.log.opened or partition.log.open_lookup()
        if isinstance(opened, DiskLookup):
            return opened
        log, engine = partition.log, opened.engine
        if not isinstance(engine, Compactable):  # until it is moved to segments
            return None
        if needs_flush(opened):
            self._replicas.flushes.sync(partition)  # for the next check
        bounds = bounds_of(log, wall_ms)
        if may_be_due(engine, bounds):
            to_clean = opened.engine.lookup("dirty ratio", partial(measure, bounds=bounds))
            if isinstance(to_clean, DiskLookup):
                return to_clean
            if to_clean.is_due(log.config):
                self._due.append(_DueLog(partition, to_clean))
        elif not was_open and nothing_to_clean(engine, bounds):
            log.nothing_to_clean = log.release()
        return None

    def _start_due(self) -> None:
        """All candidates are measured: start with the highest dirty ratio."""
        self._is_measuring = False
        due, self._due = sorted(self._due, key=lambda due: due.to_clean.ratio), []
        if not due:
            for cleaner in self._idle:
                cleaner.on_idle()
            return
        self._is_starting = True
        started: list[_CleanerRun] = []
        while due and self._idle and not self.is_stopped:
            partition, to_clean = due.pop()
            if partition.log.is_being_replaced:
                continue
            self._paths.add(partition.log.path)
            started.append(_CleanerRun(self, self._replicas, partition, to_clean, self._idle.pop()))
            started[-1].start()
        self._is_starting = False
        if any(run.has_cleaned for run in started):
            self.check()

    # ------------------------------------------------------------ for a run
    def back_off(self, path: str) -> int:
        """Skip a log for a while (rule 5); returns for how many milliseconds."""
        before = self._backoffs.get(path)
        length_ms = INITIAL_BACKOFF_MS if before is None else min(2 * before.length_ms, MAX_BACKOFF_MS)
        self._backoffs[path] = _Backoff(self.wall_ms(), length_ms)
        return length_ms

    def job(self, log: Log, to_clean: LogToClean) -> CleanerJob | DiskLookup:
        """The cleaner's job, after the lookup that reads the aborted transactions."""
        opened = log.opened or log.open_lookup()
        if isinstance(opened, DiskLookup):
            return opened
        records, wall_ms, resources = last_records(opened.producers), self.wall_ms(), self._resources
        recovery_point = self._replicas.log_manager.written_recovery_point(log)
        return opened.engine.lookup(
            "job", lambda engine: make_job(engine, log, to_clean, records, recovery_point, wall_ms, resources)
        )

    def on_run_ended(self, cleaner: Cleaner, path: str, *, has_cleaned: bool) -> None:
        """Take back a cleaner, and check for the next log if the run succeeded (rule 1) or the cleaner was replaced."""
        is_ours = cleaner in self._cleaners
        if is_ours:
            self._idle.append(cleaner)
        self._paths.discard(path)
        if has_cleaned:
            self._backoffs.pop(path, None)
        if (has_cleaned or not is_ours) and not self._is_starting:
            self.check()


@dataclass(eq=False)
class _CleanerRun:
    """One cleaning of one partition."""

    _compactor: Compactor
    _replicas: ReplicaManager
    _partition: Partition
    _to_clean: LogToClean
    _cleaner: Cleaner

    def __post_init__(self) -> None:
        self._log = log = self._partition.log
        self._path = log.path
        self._truncation_count = log.offsets.truncation_count
        self._job: CleanerJob | None = None
        self.has_cleaned = False
        """Whether it succeeded."""

    def start(self) -> None:
        self._log.is_being_cleaned = True
        job = self._replicas.lookup(*self._partition.key, lambda _: self._compactor.job(self._log, self._to_clean))
        job.then(self._on_job)

    def _on_job(self, job: Completion[CleanerJob]) -> None:
        if isinstance(job.error, KafkaError):
            self._end(failure_of(job.error))
        else:
            self._job = job.value
            self._cleaner.start(job.value, self._replace).then(lambda ended: self._end(ended.value))

    def _replace(self, new: Replacement) -> Completion[bool]:
        def replace(partition: Partition) -> bool | DiskLookup:
            if not self._is_current:
                return False
            opened = partition.log.opened or partition.log.open_lookup()
            if isinstance(opened, DiskLookup):
                return opened
            return opened.replace(new.replaced, new.size, self._compactor.wall_ms(), has_aborted=new.has_aborted)

        replaced = self._replicas.lookup(*self._partition.key, replace)
        return replaced.handle(lambda done: done.error is None and done.value)

    def _end(self, result: Outcome) -> None:
        log = self._log
        log.is_being_cleaned = False
        if isinstance(result, CleaningResult):
            if self._is_current:
                self.has_cleaned = True
                log.offsets.first_dirty_offset = result.next_dirty_offset
                _log_result(log, self._to_clean, result)
        elif isinstance(result, CleaningFailed) and self._is_current:
            self._fail(result)
        self._compactor.on_run_ended(self._cleaner, self._path, has_cleaned=self.has_cleaned)

    def _fail(self, result: CleaningFailed) -> None:
        log = self._log
        if result.is_damage:
            _mark_uncleanable(log, result.text)
        elif result.errno is None or result.errno in _FULL:
            seconds = math.ceil(self._compactor.back_off(self._path) / 1000)
            _log.warning(
                "%s is not compacted for the next %d s: %s. Free disk space or memory.", log.name, seconds, result.text
            )
        elif self._sources_exist():
            error = StorageError("compact", result.path, OSError(result.errno or 0, result.text))
            self._replicas.directory_failed(log.directory, error)

    def _sources_exist(self) -> bool:
        """Whether the segments of the job still exist."""
        if self._job is None:
            return True
        opened = self._log.opened
        return opened is not None and set(self._job.segments) <= set(opened.engine.segments())

    @property
    def _is_current(self) -> bool:
        """Whether partition and log are unchanged since the run began."""
        partition, log = self._partition, self._log
        is_here = self._replicas.partitions.get(partition.key) is partition and partition.log is log
        is_same = is_here and not partition.is_offline and log.offsets.truncation_count == self._truncation_count
        return is_same and log.config.is_compacted and not self._compactor.is_stopped


def _is_worth_opening(log: Log) -> bool:
    known = log.checkpoint
    is_dirty = known.recovery_point > max(known.log_start_offset, known.first_dirty_offset)
    return is_dirty and not log.nothing_to_clean and not log.needs_recovery


def _mark_uncleanable(log: Log, why: str) -> None:
    _log.warning("%s cannot be compacted and is skipped until the broker restarts: %s", log.name, why)
    log.is_uncleanable = True


def _log_result(log: Log, to_clean: LogToClean, cleaned: CleaningResult) -> None:
    _log.info(
        "compacted %s from %d to %d: %d of %d bytes and %d of %d records are left",
        log.name,
        to_clean.first_dirty_offset,
        cleaned.next_dirty_offset,
        cleaned.bytes_written,
        cleaned.bytes_read,
        cleaned.records_written,
        cleaned.records_read,
    )
