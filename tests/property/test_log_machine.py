"""A log compared with a list, on all engines, under any operations and losses of power.

RULES    1. Reads return what the list has, from the first whole batch at the log start on.
         2. A restart after a clean close finds everything; after a crash, a prefix with at least the flushed records.
         3. Offsets, epochs, timestamps, duplicates and aborted transactions match the remaining batches.
         4. Truncated records do not reappear. (A crash may restore them in practice: they were not acknowledged,
            and the leader epochs distinguish them from newer ones.)
NOT HERE Several logs, checkpoints and directories (tests/unit/storage/directories/test_log_manager.py).
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.control_records import ControlType
from storage.engine import AbortedTransaction
from storage.io.disk_lookup import wait_for_disk
from storage.log.append_pipeline import PreparedAppend
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from tests.support.crashing_disk import CrashingDisk
from tests.support.logs import (
    EVERYTHING,
    NOW_MS,
    SMALL,
    Engines,
    ProducerInfo,
    aborted,
    append_records,
    commitlog,
    first_open_offsets,
    log_at,
    marker,
    produced,
    records_of,
    scattered,
    segments,
)

PRODUCERS = 3


@dataclass(frozen=True)
class Batch:
    """A batch of the list."""

    base_offset: int
    values: tuple[str, ...]
    timestamp_ms: int
    epoch: int
    producer: ProducerInfo | None = None
    ends: ControlType | None = None

    @property
    def next_offset(self) -> int:
        return self.base_offset + max(len(self.values), 1)


class LogMachine(RuleBasedStateMachine):
    """The operations of a broker, and the invariants after each."""

    engines: Engines
    recovery_syncs = False
    """Whether all that a recovered log has is durable."""

    @initialize(segment_bytes=st.sampled_from([600, 1000, 100_000]))
    def begin(self, segment_bytes: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="log-machine-"))
        self.disk = CrashingDisk()
        self.config = replace(SMALL, segment_bytes=segment_bytes)
        self.batches: list[Batch] = []
        self.under_way: list[tuple[PreparedAppend, Batch]] = []
        self.start_offset = 0
        self.end_offset = 0
        self.flushed = self.recovery_point = 0
        self.epoch = 0
        self.clock = NOW_MS
        self.log = self.opened(is_clean=True)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def opened(self, *, is_clean: bool) -> Log:
        known = Checkpoint(self.recovery_point, self.start_offset, self.start_offset)
        log = log_at(
            self.root,
            engines=type(self).engines,
            disk=self.disk,
            config=self.config,
            is_clean=is_clean,
            checkpoint=known,
        )
        log.open()
        return log

    # ---- what the list knows: also of batches that were trimmed, which have left producers and transactions ----

    @property
    def next_offset(self) -> int:
        return self.under_way[-1][1].next_offset if self.under_way else self.end_offset

    def all_batches(self) -> list[Batch]:
        return [*self.batches, *(batch for _, batch in self.under_way)]

    def next_of(self, producer_id: int) -> ProducerInfo | None:
        """A producer's next sequence; None if its state is partly expired here."""
        mine = [b for b in self.all_batches() if b.producer and b.producer.producer_id == producer_id]
        records = [b for b in mine if b.ends is None]
        if not records:
            return ProducerInfo(producer_id, 0, 0)
        last = records[-1].producer
        assert last is not None
        return last._replace(sequence=last.sequence + len(records[-1].values))

    def cut(self, end_offset: int) -> None:
        """Keep the whole batches below an offset."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= end_offset]

    # ---- appending ---------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=3),
        back_ms=st.integers(-50, 50),
        producer_id=st.integers(-1, PRODUCERS - 1),
    )
    def prepare(self, sizes: list[int], back_ms: int, producer_id: int) -> None:
        if len(self.under_way) == 3:
            return
        self.clock += 20
        values = tuple(f"{self.next_offset + index}:" + "x" * size for index, size in enumerate(sizes))
        producer = self.next_of(producer_id) if producer_id >= 0 else None
        if producer is not None:
            producer = producer._replace(transactional=producer_id == 0)
        batch = Batch(self.next_offset, values, self.clock - back_ms, self.epoch, producer)
        data = produced(*values, timestamp_ms=batch.timestamp_ms, producer=producer)
        prepared = wait_for_disk(self.log.open().appends.prepare, data, leader_epoch=self.epoch, wall_ms=self.clock)
        assert prepared.duplicate is None
        prepared.write()
        self.under_way.append((prepared, batch))

    @precondition(lambda self: self.under_way)
    @rule()
    def commit(self) -> None:
        prepared, batch = self.under_way.pop(0)
        info = prepared.commit(self.clock)
        assert (info.base_offset, info.last_offset) == (batch.base_offset, batch.next_offset - 1)
        self.batches.append(batch)
        self.end_offset = batch.next_offset

    @precondition(lambda self: self.batches and not self.under_way)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Retry one of a producer's last five batches."""
        mine: dict[int, list[Batch]] = {}
        for batch in self.batches:
            if batch.producer is not None and batch.ends is None:
                mine.setdefault(batch.producer.producer_id, []).append(batch)
        known = self.log.open().producers.producers
        repeatable = [
            batch
            for producer_id, batches in mine.items()
            for batch in batches[-5:]
            if producer_id in known and any(kept[2] == batch.next_offset - 1 for kept in known[producer_id].batches)
        ]
        if repeatable:
            batch = data.draw(st.sampled_from(repeatable))
            again = produced(*batch.values, timestamp_ms=batch.timestamp_ms, producer=batch.producer)
            info = append_records(self.log, again, leader_epoch=self.epoch, wall_ms=self.clock)
            assert (info.duplicate, info.base_offset) == (True, batch.base_offset)

    @precondition(lambda self: not self.under_way and bool(first_open_offsets(self.all_batches())))
    @rule(kind=st.sampled_from([ControlType.ABORT, ControlType.COMMIT]))
    def end_transaction(self, kind: ControlType) -> None:
        producer_id = next(iter(first_open_offsets(self.all_batches())))
        producer = ProducerInfo(producer_id, 0, -1, transactional=True)
        batch = Batch(self.end_offset, (), NOW_MS, self.epoch, producer, kind)
        append_records(
            self.log,
            marker(kind, producer_id, 0),
            leader_epoch=self.epoch,
            wall_ms=self.clock,
            origin=AppendOrigin.COORDINATOR,
        )
        self.batches.append(batch)
        self.end_offset = batch.next_offset

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    # ---- cutting -----------------------------------------------------------------------------------------

    @precondition(lambda self: not self.under_way)
    @rule()
    def roll(self) -> None:
        self.log.open().roll(self.clock)

    @precondition(lambda self: not self.under_way)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        self.log.high_watermark = self.end_offset
        offset = self.start_offset + round(share * (self.end_offset - self.start_offset))
        self.log.open().truncate(offset)
        self.cut(offset)
        self.end_offset = self.log.log_end_offset
        assert self.end_offset == (self.batches[-1].next_offset if self.batches else offset) or not self.batches
        assert self.end_offset <= offset
        self.start_offset = min(self.start_offset, self.end_offset)
        self.flushed = min(self.flushed, self.end_offset)
        self.disk.discard_journal()  # rule 4

    @precondition(lambda self: not self.under_way)
    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.log.high_watermark = self.end_offset
        self.start_offset += round(share * (self.end_offset - self.start_offset))
        self.log.open().trim(self.start_offset, self.clock)
        self.disk.discard_journal()

    # ---- durability and restarts -------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.log.open().flush.begin()()
        self.log.open().flush.complete(self.end_offset)
        self.flushed = self.end_offset

    @precondition(lambda self: not self.under_way)
    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.flushed = self.recovery_point = self.end_offset
        self.log = self.opened(is_clean=True)
        assert self.log.flushed_end_offset == self.end_offset

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        written = self.all_batches()
        self.recovery_point = self.log.recovery_point
        assert self.recovery_point <= self.flushed
        self.under_way.clear()
        self.disk.crash(Random(seed))
        self.log = self.opened(is_clean=False)
        self.disk.discard_journal()  # rule 4
        end_offset = self.log.log_end_offset
        assert end_offset >= self.flushed
        self.flushed = self.log.flushed_end_offset
        durable_end = end_offset if self.recovery_syncs else self.recovery_point
        assert self.flushed == durable_end or not self.log.open().engine.size_bytes, "an empty log needs no flush"
        self.batches = written
        self.cut(end_offset)
        if self.batches:
            assert self.batches[-1].next_offset == end_offset or end_offset == self.start_offset
        self.end_offset = end_offset

    # ---- what must hold ----------------------------------------------------------------------------------

    @invariant()
    def all_is_as_in_the_list(self) -> None:
        if hasattr(self, "log"):
            self.reads_are_what_was_appended()
            self.epochs_are_those_of_the_batches()
            self.times_are_found()
            self.undecided_transactions_are_not_read()
            self.aborted_transactions_are_told()

    def reads_are_what_was_appended(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start_offset, self.end_offset)
        assert log.flushed_end_offset == self.flushed
        read = [(record.offset, (record.value or b"").decode(), record.timestamp_ms) for record in records_of(log)]
        expected = [
            (batch.base_offset + index, value, batch.timestamp_ms)
            for batch in self.batches
            if batch.next_offset > self.start_offset
            for index, value in enumerate(batch.values)
        ]
        assert read == expected

    def epochs_are_those_of_the_batches(self) -> None:
        for batch in self.batches:
            if batch.base_offset >= self.start_offset:
                assert self.log.open().epochs.epoch_at(batch.base_offset) == batch.epoch

    def times_are_found(self) -> None:
        stamps = sorted({batch.timestamp_ms for batch in self.batches})
        for target in stamps[:: max(len(stamps) // 3, 1)]:
            candidates = [
                max(batch.base_offset, self.start_offset)
                for batch in self.batches
                if batch.timestamp_ms >= target and batch.next_offset > self.start_offset
            ]
            found = wait_for_disk(self.log.open().reader.offset_for_timestamp, target)
            assert (found[1] if found else None) == (candidates[0] if candidates else None)

    def undecided_transactions_are_not_read(self) -> None:
        log = self.log
        log.high_watermark = self.end_offset
        first = min(
            (offset for offset in first_open_offsets(self.all_batches()).values() if offset < self.end_offset),
            default=self.end_offset,
        )
        assert log.open().reader.last_stable_offset == max(first, self.start_offset)

    def aborted_transactions_are_told(self) -> None:
        received: list[AbortedTransaction] = wait_for_disk(
            self.log.open().engine.aborted, self.start_offset, self.end_offset
        )
        known = [found[:3] for found in received]
        assert [found for found in known if found[1] >= self.start_offset] == [
            found for found in aborted(self.batches) if found[1] >= self.start_offset
        ]
        for offset in {self.start_offset, self.end_offset}:
            info = wait_for_disk(self.log.open().reader.read, offset, EVERYTHING, Isolation.LAST_STABLE)
            assert info.aborted is not None


class SegmentsMachine(LogMachine):
    engines = staticmethod(segments)


class ScatteredMachine(LogMachine):
    engines = staticmethod(scattered)


class CommitLogMachine(LogMachine):
    engines = staticmethod(commitlog)
    recovery_syncs = True


EFFORT = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestSegments = SegmentsMachine.TestCase
TestSegments.settings = EFFORT
TestScattered = ScatteredMachine.TestCase
TestScattered.settings = EFFORT
TestCommitLog = CommitLogMachine.TestCase
TestCommitLog.settings = EFFORT
