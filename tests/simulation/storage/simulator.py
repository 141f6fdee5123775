"""Simulation of a log manager over several processes on a simulated disk, compared with a model.

RULES    1. All randomness comes from one generator, so a seed determines the simulation.
         2. The loop performs one operation at a time. I/O work runs from queues, and the loop continues between its steps
            (work_queues.py). In some histories the disks are slow: appends run at the same time.
         3. A process stops cleanly, is killed (its writes stay), or loses power (file_system.py rules 2 and 3): between two
            operations or at any system call, also during startup and recovery.
         4. A StorageError takes its log directory offline until the next process; only an injected fault may cause it.
         5. A log is checked when it is first used after a crash (`recovered_log`): it must be a prefix of what was written,
            with all flushed batches, and after a kill with all committed ones.
NOT HERE The invariants (invariants.py), the operations (operations.py).
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from storage.config.log_config import LogConfig
from storage.directories.future_logs import take_interrupted_moves
from storage.directories.log_maintenance import invalidate_checkpoints
from storage.directories.log_manager import LogManager
from storage.directories.summary_file import LOG_SUMMARIES
from storage.io.disk import StorageError
from storage.io.file_handle_cache import UNLIMITED
from storage.log.log import Log
from tests.simulation.file_system import FileNode, FileSystem
from tests.simulation.runner import Failure, log_level
from tests.simulation.simulated_disk import Fault, ProcessEnded, SimulatedDisk
from tests.simulation.storage.invariants import check_log
from tests.simulation.storage.model import Partition
from tests.simulation.storage.operations import Operations
from tests.simulation.storage.small_limits import small_limits
from tests.simulation.work_queues import WorkQueues

STEPS = 40
SLOW_SEEDS = 6
"""Seeds divisible by this simulate slow disks: appends run at the same time."""
_ID_BYTES = 16
OPEN_FILES = (UNLIMITED, 34, 38)
"""The open-file limits; the handle cache reserves 32 of them."""
START_MS = 1_700_000_000_000
LONG_MS = 365 * 24 * 3600 * 1000
POLICIES = (frozenset({"delete"}), frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"}))


class Simulation:
    """A log manager over many processes."""

    manager_type = LogManager
    operations_type = Operations
    plays_full_disks = False
    """Whether disks are full for a while, and work waits for space (tests/simulation/fulldisks)."""

    def __init__(
        self, random: Random, steps: int = STEPS, *, is_compacting: bool | None = None, is_slow: bool = False
    ) -> None:
        """`is_compacting`: whether compaction dominates; None draws it. `is_slow`: whether appends run at the same time."""
        self.random = random
        self._ids = count()
        self.trace: list[str] = []
        """The operations of each step."""
        self.file_system = FileSystem(journals=random.random() < 0.5)
        self.directories = {path: path.encode() * 8 for path in ("/a", "/b")[: random.choice((1, 1, 2))]}
        for path in self.directories:
            self.file_system.make_directory(path)
        self.file_system.sync_all()
        self.now_ms = START_MS
        self.has_faults = random.random() < 0.25 and not self.plays_full_disks
        self._runs_immediately = random.random() < 0.4 and not is_slow and not self.plays_full_disks
        self._is_slow = is_slow
        self.is_compacting = random.random() < 0.3 if is_compacting is None else is_compacting
        self.restarts = 12 if random.random() < 0.25 else 2
        """The weight of clean restarts among the operations."""
        self._steps_left = 2 * steps if self.is_compacting else steps
        self._topic_count = 0
        self._earlier_summaries: dict[str, list[bytes]] = {}  # by path
        self.must_close_files = False
        """Whether the open-file limit is exceeded."""
        self.unmoved_directories: set[str] = set()
        """Directories that contain the source log of a move that failed at the end; it stays open."""
        self.partitions = [self.new_partition(f"t{number}") for number in range(random.choice((1, 1, 2, 3)))]
        self._begin_process(None)

    def run(self) -> None:
        """Run all operations, without garbage collections: these close files of cycles, and a limit counts open files.

        Raises:
            AssertionError: an invariant does not hold; `trace` names the operations.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            if was_enabled:
                gc.enable()

    def _run(self) -> None:
        self._draw_crash()
        while self._steps_left:
            self._steps_left -= 1
            self.trace.append("")
            try:
                self.operations.one()
            except ProcessEnded:
                self.crash()
        self.trace_step("end")
        self.disk.fuse = self.disk.fault = None
        self.free_disk()
        self.queues.run_all()
        self.operations.check_all_logs()

    def free_disk(self) -> None:
        """The disk has space again."""
        self.disk.is_full = False
        self.queues.retry()

    def _on_space_change(self, directory: str, has_space: bool) -> None:
        self.manager.disk_space[directory].is_full = not has_space

    def trace_step(self, what: str) -> None:
        self.trace[-1] = f"{self.trace[-1]} {what}".strip()

    # ---- topics ------------------------------------------------------------------------------------------

    def new_partition(self, topic: str) -> Partition:
        """A partition of a new topic."""
        self._topic_count += 1
        return Partition(topic, 0, self._topic_count.to_bytes(16, "big"), self.new_config())

    def new_config(self) -> LogConfig:
        """A random configuration with small segments."""
        random = self.random
        return LogConfig(
            cleanup_policy=random.choice(POLICIES[2:] if self.is_compacting else POLICIES),
            segment_bytes=random.choice((400, 700, 1500, 100_000)),
            segment_ms=random.choice((300, LONG_MS)),
            segment_index_bytes=random.choice((36, 10_000)),
            index_interval_bytes=random.choice((1, 150, 4096)),
            retention_ms=random.choice((500, LONG_MS, LONG_MS)),
            retention_bytes=random.choice((-1, -1, 1500)),
            delete_retention_ms=random.choice((0, 50, 10_000)),
            file_delete_delay_ms=random.choice((0, 100)),
            preallocate=random.random() < 0.1,
        )

    def open_log(self, partition: Partition, *, is_new: bool) -> None:
        """Get or create the log of a partition."""
        partition.log, partition.syncing_to = None, None
        try:
            log = self.manager.get_or_create(
                partition.topic, partition.index, partition.topic_id, partition.config, is_new=is_new
            )
        except StorageError as error:
            self.failed(error)
            if not self.manager.offline:
                raise
            return
        if log.is_offline:
            return
        assert log.directory in partition.directories or not partition.flushed, (
            f"{log.name} was recreated in another directory"
        )
        partition.log, partition.directories = log, {log.directory}

    # ---- failed directories ------------------------------------------------------------------------------

    def failed(self, error: StorageError) -> None:
        """Take the directory of a failed operation offline."""
        for directory in list(self.manager.directories):
            if error.path.startswith(f"{directory}/") or error.path == directory:
                self.go_offline(directory, error)

    def go_offline(self, directory: str, error: StorageError) -> None:
        """Take a directory offline (rule 4)."""
        self.manager.go_offline(directory, error)
        self.notice_offline()

    def notice_offline(self) -> None:
        """Drop the logs in directories that the manager took offline."""
        for directory, error in self.manager.offline.items():
            assert self.disk.has_failed, f"error without an injected fault: {error}"
            for partition in self.partitions:
                if partition.log is not None and partition.log.directory == directory:
                    self._expect_recovery(partition, partition.flushed)
                    partition.log = None

    def on_result(
        self, directory: str, then: Callable[[], None] | None = None
    ) -> Callable[[StorageError | None], None]:
        """The callback for I/O work on a directory."""

        def result_arrived(error: StorageError | None) -> None:
            if error is not None and error.is_full and self.plays_full_disks:  # of background work, which is given up
                invalidate_checkpoints(self.manager, directory)
            elif error is not None:
                self.go_offline(directory, error)
            elif then is not None:
                then()

        return result_arrived

    # ---- processes ---------------------------------------------------------------------------------------

    def _random_bytes(self, size: int) -> bytes:
        """Random bytes; those of an id differ, also if Hypothesis draws nothing but zeros."""
        drawn: bytes = self.random.randbytes(size)
        return drawn if size < _ID_BYTES else drawn[:-4] + next(self._ids).to_bytes(4, "big")

    def _begin_process(self, fuse: int | None, fault: Fault | None = None) -> None:
        random = self.random
        self.disk = SimulatedDisk(self.file_system, random, short_io=random.random() < 0.3)
        self.disk.now_ms = self.now_ms
        self.disk.fuse, self.disk.fault = fuse, fault
        self.manager = self.manager_type(
            self.disk,
            self.directories,
            LogConfig(),
            random_bytes=self._random_bytes,
            max_open_files=random.choice(OPEN_FILES),
        )
        self.manager.file_handles.on_eviction_needed = self._on_eviction_needed
        self.operations = self.operations_type(self)
        self.unmoved_directories.clear()
        self.queues = WorkQueues(
            self.disk,
            random,
            self.operations.run_loop_step,
            runs_immediately=self._runs_immediately,
            is_slow=self._is_slow,
        )
        ids = {partition.topic: partition.topic_id for partition in self.partitions}
        self.manager.load(ids.get)
        self.notice_offline()
        for _ in self.manager.recover():
            self.notice_offline()
        self.manager.submit = partial(self._queue_file_op, "write")
        self.manager.submit_directory_op = partial(self._queue_file_op, "name")
        self.manager.commit_logs.submit = self.manager.submit_reclaim_op = self._queue_reclaim_op
        self.queues.waits_for_space = self.plays_full_disks
        self.queues.on_space_change = self._on_space_change
        for partition in self.partitions:
            self.open_log(partition, is_new=not partition.directories)
        known = {partition.key for partition in self.partitions}
        strays = [log for key, log in self.manager.logs.items() if key not in known]
        for log in [*strays, *self.manager.strays]:
            if not log.is_offline:
                self.manager.rename_to_stray(log)
        take_interrupted_moves(self.manager)

    def _on_eviction_needed(self) -> None:
        self.must_close_files = True

    def _queue_file_op(self, kind: str, directory: str, change: Callable[[], None]) -> None:
        self.queues.push(kind, directory, change, self.on_result(directory))

    def _queue_reclaim_op(self, directory: str, change: Callable[[], None]) -> None:
        def on_result(error: StorageError | None) -> None:
            if error is not None and error.is_full and self.plays_full_disks:
                self._queue_file_op("write", directory, change)
            else:
                self.on_result(directory)(error)

        self.queues.push("background", directory, change, on_result)

    def _draw_crash(self) -> None:
        self.disk.fuse = self.random.randrange(400) if self.random.random() < 0.7 else None

    def restart_cleanly(self) -> None:
        """Stop cleanly and start; the power may fail in between."""
        self.free_disk()
        self.queues.run_all()
        self.operations.recover_all_open()
        for partition in self.partitions:
            partition.max_flushed = partition.next_offset
        self.manager.shutdown(self.random.choice((1, 1, 1, 2)))
        self.notice_offline()
        for partition in self.partitions:
            if partition.log is not None:
                partition.was_closed_cleanly = True
                if partition.is_recovered:
                    partition.flushed, partition.durable_start = partition.end, partition.start
        was_clean = set(self.manager.directories) - self.unmoved_directories
        for directory in self.manager.directories:
            self._change_summaries(f"{directory}/{LOG_SUMMARIES}")
        self._end(is_killed=self.random.random() < 0.5)
        self._begin_process(None)
        for directory in was_clean & set(self.manager.directories):
            assert self.manager.directories[directory].was_clean, f"{directory} was closed cleanly"
        self._draw_crash()

    def _change_summaries(self, path: str) -> None:
        """Damage the file, or put back an earlier one, as if a broker without summaries had run in between."""
        file = self.file_system.find(path)
        if not isinstance(file, FileNode):
            return
        earlier = self._earlier_summaries.setdefault(path, [])
        earlier.append(bytes(file.data))
        drawn = self.random.random()
        if drawn < 0.4:
            file.data[:] = self.random.choice(earlier)
        elif drawn < 0.5:
            file.data[self.random.randrange(len(file.data))] ^= 1 << self.random.randrange(8)
        file.durable[:] = file.data

    def crash(self) -> None:
        """Crash, and start until a start succeeds."""
        while True:
            is_killed = self.random.random() < 0.4
            self.trace_step("kill" if is_killed else "lose power")
            self._end(is_killed=is_killed)
            self.now_ms += self.random.choice((0, 10, 1000))
            try:
                fuse = self.random.randrange(40) if self.random.random() < 0.3 else None
                self._begin_process(
                    fuse, self.operations.fault() if self.has_faults and self.random.random() < 0.3 else None
                )
            except ProcessEnded:
                self.trace_step("in the start")
            except StorageError:
                assert self.disk.has_failed, "the start failed without an injected fault"
                self.trace_step("refused")
            else:
                break
        self._draw_crash()

    def _end(self, *, is_killed: bool) -> None:
        for partition in self.partitions:
            if partition.log is not None:
                whole = partition.end if partition.truncating_to is None else partition.truncating_to
                is_kept = (
                    is_killed and partition.log.directory not in self.disk.has_failed
                )  # the directory was about to go offline
                self._expect_recovery(partition, whole if is_kept else partition.flushed)
            elif not is_killed or partition.directories & self.disk.has_failed:
                partition.min_end_offset = min(partition.min_end_offset, partition.flushed)
        if is_killed:
            for path in self.disk.has_failed:
                self.file_system.drop_pages(path)
            if any(partition.truncating_to is not None for partition in self.partitions):
                self.file_system.sync_all()  # a kill during a truncation followed by a power loss is not modelled
        else:
            self.file_system.lose_power(self.random)

    @staticmethod
    def _expect_recovery(partition: Partition, min_end_offset: int) -> None:
        partition.min_end_offset = (
            min_end_offset if partition.is_recovered else min(min_end_offset, partition.min_end_offset)
        )
        partition.is_recovered = False

    # ---- recovery ----------------------------------------------------------------------------------------

    def recovered_log(self, partition: Partition) -> Log | None:
        """The open log of a partition, checked after a crash (rule 5); None if it cannot be opened."""
        log = partition.log
        if log is None:
            return None
        if not log.is_open and log.files.has_pending_ops and not self.queues.run_file_ops(log.directory):
            return None
        if partition.log is not log or (not log.is_open and log.is_unavailable):  # e.g. it is being truncated
            return None
        try:
            log.open()
        except StorageError as error:
            if not (error.is_full and self.plays_full_disks):  # else it is opened when there is space
                self.failed(error)
            return None
        if partition.log is not log:  # its commit log failed meanwhile
            return None
        if not partition.is_recovered:
            self._check_recovered(partition, log)
        return log

    def _check_recovered(self, partition: Partition, log: Log) -> None:
        start, end = log.log_start_offset, log.log_end_offset
        partition.is_recovered = True
        begins_at, partition.restarting_at = partition.restarting_at, None
        if start == end == begins_at and not (log.open().engine.size_bytes or log.open().producers.producers):
            partition.restart_at(end)
        known = partition.all_batches()
        assert end >= partition.min_end_offset, (
            f"{log.name} ends at {end} and was safe up to {partition.min_end_offset}"
        )
        kept = [batch for batch in known if batch.next_offset <= end]
        ends = kept[-1].next_offset if kept else partition.initial_offset
        assert end in (ends, start), f"{log.name} ends at {end}, inside of a batch or behind {ends}"
        if begins_at is not None and start == begins_at:
            partition.start = max(start, partition.start)
        assert start <= max(partition.start, partition.max_start), (
            f"{log.name} begins at {start}, not {partition.start}"
        )
        assert start >= partition.durable_start, f"the start {partition.durable_start} of {log.name} was lost"
        if partition.was_closed_cleanly:
            partition.flushed = end
        elif log.flushed_end_offset <= partition.max_flushed or log.open().engine.shared_log is not None:
            # The recovery of a commit log has synced it: the next loss of power checks that.
            partition.flushed = max(partition.flushed, log.flushed_end_offset)
        partition.was_closed_cleanly, partition.max_flushed, partition.truncating_to = False, 0, None
        partition.max_start = 0
        partition.has_lost_records |= len(kept) < len(known)
        partition.batches = kept
        partition.start_at(start)
        partition.in_flight.clear()
        if ends != end:
            partition.batches.clear()
        if not partition.batches:
            partition.initial_offset = end
        partition.producers_expired_before = max(partition.producers_expired_before, log.open().engine.start_offset)
        check_log(log, partition)


def simulate(
    seed: int,
    *,
    is_compacting: bool | None = None,
    steps: int = STEPS,
    simulated: type[Simulation] = Simulation,
    part: str = "",
) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulation: Simulation | None = None
    try:
        random = Random(seed)
        with log_level(logging.CRITICAL), small_limits(random):
            is_slow = seed % SLOW_SEEDS == 0
            simulation = simulated(random, steps, is_compacting=is_compacting, is_slow=is_slow)
            simulation.run()
    except Exception as error:  # noqa: BLE001  # any error belongs to this seed
        trace = [] if simulation is None else simulation.trace
        shown = "\n".join(f"{number:4} {step}" for number, step in enumerate(trace, 1))
        summary = f"seed {seed}: {type(error).__name__}: {error}"
        return Failure(f"make sim{part} SEED={seed}", summary, f"{shown}\n{''.join(traceback.format_exception(error))}")
    return None
