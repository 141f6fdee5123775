"""A compaction that runs concurrently, a few steps at a time, as the compaction process of a broker does.

NOT HERE The invariants of compacted logs (invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from errno import ENOSPC
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import KafkaError
from storage.compaction.cleaner import clean
from storage.compaction.cleaner_job import CleanerJob, CleanerResources, CleaningResult, Replacement, Step
from storage.compaction.offset_map import SLOT_BYTES
from storage.io.disk import StorageError
from storage.log.log import Log
from tests.simulation.storage.model import CompactionRun, Partition
from tests.support.compaction import job_for

if TYPE_CHECKING:
    from tests.simulation.storage.simulator import Simulation

RESOURCES = (CleanerResources(), CleanerResources(memory_bytes=5 * SLOT_BYTES, load_factor=0.8, buffer_bytes=300))


class Run(NamedTuple):
    """A compaction in progress."""

    partition: Partition
    log: Log
    truncation_count: int
    job: CleanerJob
    steps: Iterator[Step]


class Compaction:
    """The current compaction, if any."""

    def __init__(self, simulation: Simulation, choose_partition: Callable[[], tuple[Partition, Log] | None]) -> None:
        """`choose_partition` returns a usable partition."""
        self._simulation = simulation
        self._random = simulation.random
        self._choose_partition = choose_partition
        self._run: Run | None = None
        self._replacement: Replacement | None = None

    def step(self) -> None:
        """Start a compaction, or continue the current one."""
        if self._replacement is not None:
            self._replace()
        elif self._run is not None:
            for _ in range(self._random.choice((1, 5, 200, 200))):
                if self._run is not None and self._replacement is None:
                    self._advance(self._run)
        else:
            self._start()

    def _start(self) -> None:
        found = self._choose_partition()
        if found is None:
            return
        partition, log = found
        if not log.config.is_compacted or log.files.has_pending_ops:
            return
        job = job_for(
            log,
            self._simulation.now_ms,
            self._random.choice(RESOURCES),
            written_recovery_point=self._simulation.manager.written_recovery_point(log),
        )
        if job.first_dirty_offset < job.end_offset:
            partition.compactions.append(CompactionRun(job.end_offset, job.wall_ms, partition.end))
            log.is_being_cleaned = True
            self._run = Run(partition, log, log.offsets.truncation_count, job, clean(self._simulation.disk, job))

    def _advance(self, run: Run) -> None:
        try:
            step = next(run.steps)
        except StorageError as error:
            self._finish(run)
            if (
                error.errno != ENOSPC
                and self._is_current(run)
                and set(run.job.segments) <= set(run.log.open().engine.segments())
            ):
                raise
            return
        except KafkaError:
            self._finish(run)
            assert not self._is_current(run), "the log cannot be compacted"
            return
        if isinstance(step, Replacement):
            self._replacement = step
            if self._random.random() < 0.5:
                self._replace()
        elif isinstance(step, CleaningResult):
            self._finish(run)
            if self._is_current(run):
                run.log.offsets.first_dirty_offset = step.next_dirty_offset

    def _replace(self) -> None:
        run, new = self._run, self._replacement
        assert run is not None
        assert new is not None
        self._replacement = None
        if self._is_current(run):
            before = _last_sequences(run.log)
            if run.log.open().replace(new.replaced, new.size, self._simulation.now_ms, has_aborted=new.has_aborted):
                after = before if run.log.is_offline else _last_sequences(run.log)
                assert after == before, f"a compaction changes the producer state from {before} to {after}"
                return
        self._finish(run)

    def _finish(self, run: Run) -> None:
        run.log.is_being_cleaned = False
        self._run = None

    def _is_current(self, run: Run) -> bool:
        log = run.log
        return (
            run.partition.log is log
            and log.is_open
            and log.offsets.truncation_count == run.truncation_count
            and log.config.is_compacted
        )


def _last_sequences(log: Log) -> dict[int, int]:
    return {producer_id: known.last_sequence for producer_id, known in log.open().producers.producers.items()}
