"""One history: what a broker's storage goes through, from a seed, compared with the model again and again.

RULES    1. Everything that happens is drawn from one source of chance, so a seed is a history. Nothing else is random.
         2. The loop does one thing at a time; closed work runs in lanes, and the loop goes on between its steps (lanes.py).
         3. A process ends cleanly, is killed (what it did stays), or loses its power (file_system.py rules 2 and 3): between
            two steps of this history, or at any call of the system in one, starts and recoveries included.
         4. A StorageError takes its log directory offline until the process starts anew; only a fault may be its reason.
         5. What a crash has left of a log is seen when it is first used (`settled`): a beginning of what was written, with all
            that was flushed, and after a kill all that was committed.
NOT HERE What must hold (checks.py), what a step does to a log and to the model (steps.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.io.file_handle_cache import UNLIMITED
from storage.log.log import Log
from tests.simulation.checks import check_log
from tests.simulation.file_system import FileSystem
from tests.simulation.lanes import Lanes
from tests.simulation.model import Partition
from tests.simulation.simulated_disk import Ended, Fault, SimulatedDisk
from tests.simulation.steps import Steps

STEPS = 40
OPEN_FILES = (UNLIMITED, 34, 38)
"""At most; what is kept open are 32 fewer."""
START_MS = 1_700_000_000_000
LONG_MS = 365 * 24 * 3600 * 1000
POLICIES = (frozenset({"delete"}), frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"}))


class History:
    """The life of a log manager, over many processes."""

    def __init__(self, dice: Random, steps: int = STEPS, *, is_compacting: bool | None = None) -> None:
        """`is_compacting`: whether compaction comes before all else; None: perhaps."""
        self.dice = dice
        self.trace: list[str] = []
        """What was done."""
        self.file_system = FileSystem(journals=dice.random() < 0.5)
        self.directories = {path: path.encode() * 8 for path in ("/a", "/b")[: dice.choice((1, 1, 2))]}
        for path in self.directories:
            self.file_system.make_directory(path)
        self.file_system.sync_all()
        self.now_ms = START_MS
        self.is_faulty = dice.random() < 0.25
        self._is_prompt = dice.random() < 0.4
        self.is_compacting = dice.random() < 0.3 if is_compacting is None else is_compacting
        self._steps_left = 2 * steps if self.is_compacting else steps
        self._topics_made = 0
        self.has_surplus = False
        """Whether too many files are open."""
        self.left_behind: set[str] = set()
        """Directories with a log that could not move to another at last, for that one failed: nobody closes it."""
        self.partitions = [self.new_partition(f"t{number}") for number in range(dice.choice((1, 1, 2, 3)))]
        self._begin_process(None)

    def run(self) -> None:
        """Go through all of it.

        Raises:
            AssertionError: what must hold does not; `trace` tells what was done.
        """
        self._light_fuse()
        while self._steps_left:
            self._steps_left -= 1
            self.trace.append("")
            try:
                self.steps.one()
            except Ended:
                self.crash()
        self.note("end")
        self.disk.fuse = self.disk.fault = None
        self.lanes.run_all()
        self.steps.look_at_everything()

    def note(self, what: str) -> None:
        """Remember what is done."""
        self.trace[-1] = f"{self.trace[-1]} {what}".strip()

    # ---- topics ------------------------------------------------------------------------------------------

    def new_partition(self, topic: str) -> Partition:
        """A partition of a topic that is made now."""
        self._topics_made += 1
        return Partition(topic, 0, self._topics_made.to_bytes(16, "big"), self.new_config())

    def new_config(self) -> LogConfig:
        """Small segments, of all kinds."""
        dice = self.dice
        return LogConfig(
            cleanup_policy=dice.choice(POLICIES[2:] if self.is_compacting else POLICIES),
            segment_bytes=dice.choice((400, 700, 1500, 100_000)),
            segment_ms=dice.choice((300, LONG_MS)),
            segment_index_bytes=dice.choice((36, 10_000)),
            index_interval_bytes=dice.choice((1, 150, 4096)),
            retention_ms=dice.choice((500, LONG_MS, LONG_MS)),
            retention_bytes=dice.choice((-1, -1, 1500)),
            delete_retention_ms=dice.choice((0, 50, 10_000)),
            file_delete_delay_ms=dice.choice((0, 100)),
            preallocate=dice.random() < 0.1,
        )

    def make(self, partition: Partition, *, is_new: bool) -> None:
        """Have the manager find, or make, the log of a partition."""
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
        assert log.directory in partition.places or not partition.flushed, f"{log.name} was made anew elsewhere"
        partition.log, partition.places = log, {log.directory}

    # ---- failing directories -----------------------------------------------------------------------------

    def failed(self, error: StorageError) -> None:
        """Take the directory offline whose disk failed."""
        for directory in list(self.manager.directories):
            if error.path.startswith(f"{directory}/") or error.path == directory:
                self.go_offline(directory, error)

    def go_offline(self, directory: str, error: StorageError) -> None:
        """Rule 4."""
        self.manager.go_offline(directory, error)
        self.notice_offline()

    def notice_offline(self) -> None:
        """The manager may have taken a directory offline."""
        for directory, error in self.manager.offline.items():
            assert self.disk.has_failed, f"a healthy disk is said to have failed: {error}"
            for partition in self.partitions:
                if partition.log is not None and partition.log.directory == directory:
                    self._leave(partition, partition.flushed)
                    partition.log = None

    def done(self, directory: str, then: Callable[[], None] | None = None) -> Callable[[StorageError | None], None]:
        """What is to be told how closed work ended."""

        def told(error: StorageError | None) -> None:
            if error is not None:
                self.go_offline(directory, error)
            elif then is not None:
                then()

        return told

    # ---- the life of a process ---------------------------------------------------------------------------

    def _begin_process(self, fuse: int | None, fault: Fault | None = None) -> None:
        dice = self.dice
        self.disk = SimulatedDisk(self.file_system, dice, is_stingy=dice.random() < 0.3)
        self.disk.now_ms = self.now_ms
        self.disk.fuse, self.disk.fault = fuse, fault
        self.manager = LogManager(
            self.disk,
            self.directories,
            LogConfig(),
            random_bytes=dice.randbytes,
            most_open_files=dice.choice(OPEN_FILES),
        )
        self.manager.open_files.on_surplus = self._learn_of_surplus
        self.steps = Steps(self)
        self.left_behind.clear()
        self.lanes = Lanes(self.disk, dice, self.steps.meanwhile, is_prompt=self._is_prompt)
        ids = {partition.topic: partition.topic_id for partition in self.partitions}
        self.manager.load(ids.get)
        self.notice_offline()
        for _ in self.manager.recover():
            self.notice_offline()
        self.manager.later = partial(self._change, "write")
        self.manager.name_later = partial(self._change, "name")
        for partition in self.partitions:
            self.make(partition, is_new=not partition.places)
        known = {partition.key for partition in self.partitions}
        strays = [log for key, log in self.manager.logs.items() if key not in known]
        for log in [*strays, *self.manager.strays]:
            if not log.is_offline:
                self.manager.set_aside(log)
        self.manager.take_interrupted()

    def _learn_of_surplus(self) -> None:
        self.has_surplus = True

    def _change(self, kind: str, directory: str, change: Callable[[], None]) -> None:
        self.lanes.push(kind, directory, change, self.done(directory))

    def _light_fuse(self) -> None:
        self.disk.fuse = self.dice.randrange(400) if self.dice.random() < 0.7 else None

    def stop(self) -> None:
        """A clean stop, and a start; the power may fail in between."""
        self.lanes.run_all()
        self.steps.settle_all_in_use()
        for partition in self.partitions:
            partition.may_be_flushed = partition.next_offset
        self.manager.shutdown(1)
        self.notice_offline()
        for partition in self.partitions:
            if partition.log is not None:
                partition.is_all_durable = True
                if partition.is_settled:
                    partition.flushed, partition.durable_start = partition.end, partition.start
        was_clean = set(self.manager.directories) - self.left_behind
        self._end(is_killed=self.dice.random() < 0.5)
        self._begin_process(None)
        for directory in was_clean & set(self.manager.directories):
            assert self.manager.directories[directory].was_clean, f"{directory} was closed cleanly"
        self._light_fuse()

    def crash(self) -> None:
        """The process is gone; begin another, and another if that one goes, too."""
        while True:
            is_killed = self.dice.random() < 0.4
            self.note("kill" if is_killed else "lose power")
            self._end(is_killed=is_killed)
            self.now_ms += self.dice.choice((0, 10, 1000))
            try:
                fuse = self.dice.randrange(40) if self.dice.random() < 0.3 else None
                self._begin_process(fuse, self.steps.fault() if self.is_faulty and self.dice.random() < 0.3 else None)
            except Ended:
                self.note("in the start")
            except StorageError:
                assert self.disk.has_failed, "a start is refused without a reason"
                self.note("refused")
            else:
                break
        self._light_fuse()

    def _end(self, *, is_killed: bool) -> None:
        for partition in self.partitions:
            if partition.log is not None:
                whole = partition.end if partition.cut_at is None else partition.cut_at
                is_kept = (
                    is_killed and partition.log.directory not in self.disk.has_failed
                )  # and was about to go offline
                self._leave(partition, whole if is_kept else partition.flushed)
            elif not is_killed or partition.places & self.disk.has_failed:
                partition.floor = min(partition.floor, partition.flushed)
        if is_killed:
            for path in self.disk.has_failed:
                self.file_system.drop_pages(path)
            if any(partition.cut_at is not None for partition in self.partitions):
                self.file_system.sync_all()  # a kill amid a cut and a loss of power within seconds is not modelled
        else:
            self.file_system.lose_power(self.dice)

    @staticmethod
    def _leave(partition: Partition, floor: int) -> None:
        partition.floor = floor if partition.is_settled else min(floor, partition.floor)
        partition.is_settled = False

    # ---- what a crash has left ---------------------------------------------------------------------------

    def settled(self, partition: Partition) -> Log | None:
        """The log of a partition, open, and the model cut to what is left of it (rule 5); None where it is not to be had."""
        log = partition.log
        if log is None:
            return None
        if not log.is_open and log.is_changing and not self.lanes.run_changes(log.directory):
            return None
        if partition.log is not log:
            return None
        try:
            log.open()
        except StorageError as error:
            self.failed(error)
            return None
        if not partition.is_settled:
            self._settle(partition, log)
        return log

    def _settle(self, partition: Partition, log: Log) -> None:
        start, end = log.log_start_offset, log.log_end_offset
        partition.is_settled = True
        begins_at, partition.begins_anew_at = partition.begins_anew_at, None
        if start == end == begins_at and not (log.size_bytes or log.producers.producers):
            partition.begin_at(end)
        known = partition.known()
        assert end >= partition.floor, f"{log.name} ends at {end} and was safe up to {partition.floor}"
        kept = [batch for batch in known if batch.next_offset <= end]
        ends = kept[-1].next_offset if kept else partition.begin
        assert end in (ends, start), f"{log.name} ends at {end}, inside of a batch or behind {ends}"
        is_new = not partition.flushed and not end
        if begins_at is not None and start == begins_at:
            partition.start = max(start, partition.start)
        assert start <= max(partition.start, partition.may_start), (
            f"{log.name} begins at {start}, not {partition.start}"
        )
        assert start >= partition.durable_start or is_new, f"the start {partition.durable_start} of {log.name} was lost"
        if partition.is_all_durable:
            partition.flushed = end
        elif log.flushed_end_offset <= partition.may_be_flushed:
            partition.flushed = max(partition.flushed, log.flushed_end_offset)
        partition.is_all_durable, partition.may_be_flushed, partition.cut_at = False, 0, None
        partition.may_start = 0
        partition.has_lost |= len(kept) < len(known)
        partition.batches = kept
        partition.start_at(start)
        partition.under_way.clear()
        if ends != end:
            partition.batches.clear()
        if not partition.batches:
            partition.begin = end
        partition.forgotten = max(partition.forgotten, log.open().start_offset)
        check_log(log, partition)
