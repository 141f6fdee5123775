"""A compaction beside everything else, a few steps of it at a time, as a broker's helper does it.

NOT HERE What must hold of a compacted log (checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from errno import ENOSPC
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import KafkaError
from storage.compaction.cleanable import bounds_of, job_of, last_records, measure
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import Cleaned, Job, Replacement, Resources, Step
from storage.compaction.offset_map import SLOT_BYTES
from storage.io.disk import StorageError
from storage.log.log import Log
from tests.simulation.model import Cleaning, Partition

if TYPE_CHECKING:
    from tests.simulation.history import History

RESOURCES = (Resources(), Resources(memory_bytes=5 * SLOT_BYTES, load_factor=0.8, buffer_bytes=300))


class Run(NamedTuple):
    """A compaction under way."""

    partition: Partition
    log: Log
    cuts: int
    job: Job
    steps: Iterator[Step]


class Compaction:
    """The one under way, if there is one."""

    def __init__(self, history: History, choose: Callable[[], tuple[Partition, Log] | None]) -> None:
        """`choose` names a partition that can be used."""
        self._history = history
        self._dice = history.dice
        self._choose = choose
        self._run: Run | None = None
        self._replacement: Replacement | None = None

    def step(self) -> None:
        """Begin a compaction, or go on with the one under way."""
        if self._replacement is not None:
            self._replace()
        elif self._run is not None:
            for _ in range(self._dice.choice((1, 5, 200, 200))):
                if self._run is not None and self._replacement is None:
                    self._go_on(self._run)
        else:
            self._begin_compaction()

    def _begin_compaction(self) -> None:
        found = self._choose()
        if found is None:
            return
        partition, log = found
        if not log.config.is_compacted or log.is_changing:
            return
        job = self._job(log)
        if job.first_dirty_offset < job.end_offset:
            partition.cleanings.append(Cleaning(job.end_offset, job.wall_ms, partition.end))
            log.is_being_cleaned = True
            self._run = Run(partition, log, log.cuts, job, clean(self._history.disk, job))

    def _job(self, log: Log) -> Job:
        now_ms, engine = self._history.now_ms, log.open()
        dirt = measure(engine, bounds_of(log, now_ms))
        return job_of(engine, log, dirt, last_records(log.producers), now_ms, self._dice.choice(RESOURCES))

    def _go_on(self, run: Run) -> None:
        try:
            step = next(run.steps)
        except StorageError as error:
            self._end_compaction(run)
            if (
                error.errno != ENOSPC
                and self._is_current(run)
                and set(run.job.segments) <= set(run.log.open().segments())
            ):
                raise
            return
        except KafkaError:
            self._end_compaction(run)
            assert not self._is_current(run), "what lies in the log cannot be compacted"
            return
        if isinstance(step, Replacement):
            self._replacement = step
            if self._dice.random() < 0.5:
                self._replace()
        elif isinstance(step, Cleaned):
            self._end_compaction(run)
            if self._is_current(run):
                run.log.first_dirty_offset = step.next_dirty_offset

    def _replace(self) -> None:
        run, new = self._run, self._replacement
        assert run is not None
        assert new is not None
        self._replacement = None
        if not self._is_current(run) or not run.log.replace(
            new.replaced, new.size, self._history.now_ms, has_aborted=new.has_aborted
        ):
            self._end_compaction(run)

    def _end_compaction(self, run: Run) -> None:
        run.log.is_being_cleaned = False
        self._run = None

    def _is_current(self, run: Run) -> bool:
        log = run.log
        return run.partition.log is log and log.is_open and log.cuts == run.cuts and log.config.is_compacted
