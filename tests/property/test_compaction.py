"""A compacted log compared with a list of all records written, under any operations and losses of power.

RULES    1. Every record read was written: same offset, key, value and timestamp, in offset order.
         2. For every key the last committed record is present, unless it is a tombstone; then the tombstone or no
            record of the key is.
         3. Nothing from the end of the last compaction on is missing.
         4. No aborted record is read with read_committed, and no committed one counts as aborted.
         5. A compaction does not change the log end, the log start or the producer state.
         6. A second compaction directly after the first changes nothing.
         7. The power may fail at any change of a file or name: afterwards 1, 2 and 4 hold for all flushed records.
         8. A history is reproducible from its seed, which is in the test's name.
NOT HERE Logs that are not compacted (test_log_machine.py); several partitions
         (tests/unit/replication/partition/test_compactor.py).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from protocol.compression import Compression
from protocol.records import ControlType, Record
from storage.compaction.cleaner_job import CleanerResources
from storage.compaction.offset_map import SLOT_BYTES
from storage.log.log import AppendOrigin, Checkpoint, Log
from tests.support.compaction import COMPACTED, committed_records, compact, keyed
from tests.support.crashing_disk import CrashingDisk, PowerLoss
from tests.support.logs import NOW_MS, ProducerInfo, append_records, log_at, marker, records_of

HISTORIES = 60
STEPS = 25
PRODUCERS = 3
TRANSACTIONAL = 0
RESOURCES = (CleanerResources(), CleanerResources(memory_bytes=7 * SLOT_BYTES, load_factor=0.8, buffer_bytes=300))


@dataclass(frozen=True)
class Written:
    """A record or marker that was appended."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp_ms: int
    producer: ProducerInfo | None = None
    ends: ControlType | None = None

    @property
    def is_transactional(self) -> bool:
        return self.producer is not None and self.producer.transactional


class History:
    """The operations of a broker, and the invariants after each."""

    def __init__(self, root: Path, rng: Random) -> None:
        self.root = root
        self.rng = rng
        self.disk = CrashingDisk()
        self.config = replace(
            COMPACTED,
            segment_bytes=rng.choice((400, 1000, 100_000)),
            delete_retention_ms=rng.choice((0, 50, 10_000)),
            file_delete_delay_ms=0,
        )
        self.written: list[Written] = []
        self.flushed = self.recovery_point = self.cleaned_end = 0
        self.first_dirty_offset = -1
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        self.clock = NOW_MS
        self.log = self.open_log(is_clean=True)

    def open_log(self, *, is_clean: bool) -> Log:
        known = Checkpoint(self.recovery_point, 0, 0, self.first_dirty_offset)
        log = log_at(self.root, disk=self.disk, config=self.config, is_clean=is_clean, checkpoint=known)
        log.open()
        log.high_watermark = log.log_end_offset
        return log

    @property
    def end_offset(self) -> int:
        return self.written[-1].offset + 1 if self.written else 0

    # ---- what a broker does --------------------------------------------------------------------------------

    def step(self) -> str:
        """Run a random operation; returns its name."""
        act = self.rng.choice(
            (
                *(self.append, self.append, self.append, self.flush, self.compact, self.compact),
                *(self.change_policy, self.close_and_reopen, self.lose_power_in_a_compaction, self.crash),
            )
        )
        act()
        self.all_is_as_in_the_list()
        return act.__name__

    def append(self) -> None:
        """Append batches of any codec: idempotent, transactional, without a producer."""
        for _ in range(self.rng.randrange(1, 15)):
            self.append_batch(self.rng)
            if self.is_in_transaction() and self.rng.random() < 0.2:
                self.end_transaction(self.rng.choice((ControlType.ABORT, ControlType.COMMIT)))
        if self.rng.random() < 0.5:
            self.log.roll(self.clock)

    def append_batch(self, rng: Random) -> None:
        self.clock += 10
        size = rng.choice((1, 1, 2, 4))
        producer_id = rng.randrange(-1, PRODUCERS)
        producer = None
        if producer_id >= 0:
            producer = ProducerInfo(producer_id, 0, self.sequences[producer_id], producer_id == TRANSACTIONAL)
            self.sequences[producer_id] += size
        records = [
            (b"%d" % rng.randrange(8), None if rng.random() < 0.25 else b"x" * rng.randrange(60)) for _ in range(size)
        ]
        codec = rng.choice(list(Compression))
        data = keyed(*records, timestamp_ms=self.clock, compression=codec, producer=producer)
        offset = append_records(self.log, data, wall_ms=self.clock).base_offset
        assert offset == self.end_offset
        for index, (key, value) in enumerate(records):
            self.written.append(Written(offset + index, key, value, self.clock, producer))
        self.log.high_watermark = self.end_offset

    def end_transaction(self, kind: ControlType) -> None:
        producer = ProducerInfo(TRANSACTIONAL, 0, -1, transactional=True)
        data = marker(kind, TRANSACTIONAL, 0)
        append_records(self.log, data, wall_ms=self.clock, origin=AppendOrigin.COORDINATOR)
        self.written.append(Written(self.end_offset, b"", None, self.clock, producer, kind))
        self.log.high_watermark = self.end_offset

    def is_in_transaction(self) -> bool:
        mine = [record for record in self.written if record.is_transactional]
        return bool(mine) and mine[-1].ends is None

    def flush(self) -> None:
        self.log.sync_work()()
        self.log.flushed(self.end_offset)
        self.flushed = self.end_offset

    def compact(self) -> None:
        self.clock += self.rng.choice((0, 60, 20_000))
        resources = self.rng.choice(RESOURCES)
        if self.rng.random() < 0.5:
            self.log.roll(self.clock)
        if self.rng.random() < 0.5:
            self.flush()
        before = {producer: known.last_sequence for producer, known in self.log.producers.producers.items()}
        while (cleaned := compact(self.log, self.clock, disk=self.disk, resources=resources)) is not None:
            self.cleaned_end = cleaned.next_dirty_offset
        assert compact(self.log, self.clock, disk=self.disk, resources=resources) is None
        self.first_dirty_offset = self.log.first_dirty_offset
        assert {producer: known.last_sequence for producer, known in self.log.producers.producers.items()} == before

    def change_policy(self) -> None:
        """The gaps of a topic that is no longer compacted are not taken for a loss."""
        policy = self.rng.choice((frozenset({"compact"}), frozenset({"compact", "delete"}), frozenset({"delete"})))
        self.config = replace(self.config, cleanup_policy=policy)
        self.log.update_config(self.config)
        self.first_dirty_offset = self.log.first_dirty_offset

    # ---- the end of a process ------------------------------------------------------------------------------

    def close_and_reopen(self) -> None:
        self.log.close()
        self.flushed = self.recovery_point = self.end_offset
        self.log = self.open_log(is_clean=True)
        self.producers_are_known()

    def lose_power_in_a_compaction(self) -> None:
        self.clock += self.rng.choice((0, 20_000))
        self.log.roll(self.clock)
        if self.rng.random() < 0.8:
            self.flush()
        self.cleaned_end = self.end_offset  # its progress is not reported
        self.disk.fuse = self.rng.randrange(60)
        with suppress(PowerLoss):
            compact(self.log, self.clock, disk=self.disk)
        self.crash()

    def crash(self) -> None:
        self.recovery_point = self.log.recovery_point
        self.disk.crash(self.rng)
        self.log = self.open_log(is_clean=False)
        self.disk.discard_journal()
        end_offset = self.log.log_end_offset
        assert end_offset >= self.flushed
        self.written = [record for record in self.written if record.offset < end_offset]
        if self.end_offset < end_offset:
            assert self.end_offset <= end_offset, "the end stays where it was"
        self.flushed = self.log.flushed_end_offset
        self.cleaned_end = min(self.cleaned_end, end_offset)
        self.producers_are_known()
        for producer_id in self.sequences:
            mine = [r for r in self.written if r.producer and r.producer.producer_id == producer_id and r.ends is None]
            last = mine[-1] if mine else None
            known = self.log.producers.producers.get(producer_id)
            self.sequences[producer_id] = known.last_sequence + 1 if known else 0
            assert last is not None or not known

    def producers_are_known(self) -> None:
        for producer_id, known in self.log.producers.producers.items():
            mine = [r for r in self.written if r.producer and r.producer.producer_id == producer_id and r.ends is None]
            if known.batches:
                # An older one where the power took the last batch, for which the one before was cleaned away.
                assert known.batches[-1][2] in {record.offset for record in mine}

    # ---- what must hold ------------------------------------------------------------------------------------

    def all_is_as_in_the_list(self) -> None:
        read = records_of(self.log)
        self.what_is_read_was_written(read)
        self.nothing_newer_is_lost(read)
        self.last_values_are_there()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (0, self.end_offset)

    def what_is_read_was_written(self, read: list[Record]) -> None:
        known = {record.offset: record for record in self.written}
        offsets = [record.offset for record in read]
        assert offsets == sorted(set(offsets))
        for record in read:
            was = known[record.offset]
            assert was.ends is None
            assert (record.key, record.value, record.timestamp_ms) == (was.key, was.value, was.timestamp_ms)

    def nothing_newer_is_lost(self, read: list[Record]) -> None:
        there = {record.offset for record in read}
        newer = [record.offset for record in self.written if record.ends is None and record.offset >= self.cleaned_end]
        assert set(newer) <= there

    def last_values_are_there(self) -> None:
        aborted = self.aborted_offsets()
        stable = self.log.last_stable_offset
        seen = committed_records(self.log)
        assert not aborted & {record.offset for record in seen}
        last: dict[bytes, Written] = {}
        for record in self.written:
            if record.ends is None and record.offset < stable and record.offset not in aborted:
                last[record.key] = record
        found = {record.key: record for record in seen}
        for key, record in last.items():
            there = found.get(key)
            if record.value is not None:
                assert there is not None, f"{key!r} at {record.offset} is gone"
            if there is not None:
                assert (there.offset, there.value) == (record.offset, record.value)

    def aborted_offsets(self) -> set[int]:
        found: set[int] = set()
        current: list[int] = []
        for record in self.written:
            if not record.is_transactional:
                continue
            if record.ends is None:
                current.append(record.offset)
            else:
                found.update(current if record.ends == ControlType.ABORT else ())
                current = []
        return found


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_history(seed: int, tmp_path: Path) -> None:
    history = History(tmp_path, Random(seed))
    steps: list[str] = []
    try:
        while len(steps) < STEPS:
            steps.append(history.step())
    except AssertionError as error:
        error.add_note(f"in the step behind {steps}")
        raise
