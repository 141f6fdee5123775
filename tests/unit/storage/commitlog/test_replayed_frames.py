"""What a start makes of frames that are late, or behind lost ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from storage.commitlog.frames import HEAD_SIZE
from storage.engine import AbortedTransaction
from storage.io.deferred_file_ops import FileOp
from tests.support.segments import NOW_MS
from tests.unit.storage.commitlog.test_cleaning import drop
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of, damage, state_of, sync


def test_a_roll_that_is_written_after_later_appends_begins_its_segment(tmp_path: Path) -> None:
    """A busy thread writes it late: without its segment, the start that follows would delete the next one too."""
    process = Process(tmp_path, file_bytes=1 << 20)
    engine, held = process[0], list[FileOp]()
    for _ in range(3):
        append_to(engine, 300)
    engine.submit = held.append
    engine.roll(NOW_MS)
    engine.trim(3)
    for _ in range(8):
        append_to(engine, 300)
    assert [segment.base_offset for segment in engine.segments()] == [3, 9]
    for op in held:
        op()
    process.log.apply_changes()
    sync(engine)
    again = Process(tmp_path, file_bytes=1 << 20)[0]
    assert state_of(again) == state_of(engine)
    assert again._slot.state() == engine._slot.state()


def test_segments_and_aborted_transactions_behind_lost_records_are_lost(tmp_path: Path) -> None:
    """Else the next records would be in a segment that begins behind them, and could count as aborted."""
    process = Process(tmp_path, file_bytes=1 << 20)
    engine = process[0]
    append_to(engine)
    at = process.paths(".clog")[0].stat().st_size
    for _ in range(2):
        append_to(engine, 300)
    engine.add_aborted(AbortedTransaction(7, 1, 2, 0))
    engine.roll(NOW_MS)
    append_to(engine)
    engine.roll(NOW_MS)
    engine.trim(3)
    sync(engine)
    append_to(process[1])
    damage(process.paths(".clog")[0], at + HEAD_SIZE + 150)
    again = Process(tmp_path, file_bytes=1 << 20)[0]
    assert (again.start_offset, again.end_offset, again.segments()) == (0, 1, [(0, 1, 200)])
    assert not again.aborted(0, 10)


def test_a_partition_that_is_deleted_and_created_again_has_the_new_records_after_a_start(tmp_path: Path) -> None:
    """Its new slot has a lower number than the old one, whose end is in the same queue file, behind the new one's state."""
    process = Process(tmp_path, file_bytes=1 << 20)
    append_to(process[0])
    append_to(process[1])
    drop(process, 0)
    process.log.apply_changes()
    process.log.finish_active()  # the number of partition 0 is free
    append_to(process[1])
    drop(process, 1)
    process.log.apply_changes()
    del process._engines[1]
    kept = append_to(process[1])
    for _ in range(2):  # the first start after a kill reads frames, the next one the queue file
        assert bytes_of(Process(tmp_path, file_bytes=1 << 20)[1]) == kept
    again = Process(tmp_path, file_bytes=1 << 20)
    drop(again, 1)
    for _ in range(2):
        assert Process(tmp_path, file_bytes=1 << 20)[1].end_offset == 0


class _Counted(tuple[AbortedTransaction, ...]):
    """Counts the elements that are looked at."""

    __slots__ = ()
    looks: ClassVar[list[int]] = []

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for transaction in super().__iter__():
            self.looks.append(1)
            yield transaction

    def __contains__(self, sought: object) -> bool:
        return any(transaction == sought for transaction in self)

    def __getitem__(self, index: Any) -> Any:
        self.looks.append(1)
        return super().__getitem__(index)


def test_a_read_looks_only_at_the_aborted_transactions_of_its_range(tmp_path: Path) -> None:
    """A partition may have many of them, and each read of committed records asks."""
    engine = Process(tmp_path, file_bytes=1 << 20)[0]
    transactions = [AbortedTransaction(7, offset, offset + 1, offset + 2) for offset in range(0, 2000, 2)]
    engine._slot.aborted = counted = _Counted(transactions)
    counted.looks.clear()
    assert engine.aborted(1000, 1004) == transactions[500:502]
    assert engine.aborted(1001, 1002) == transactions[500:501]
    assert len(counted.looks) < 40


def test_another_aborted_transaction_is_compared_with_the_last_one(tmp_path: Path) -> None:
    engine = Process(tmp_path, file_bytes=1 << 20)[0]
    append_to(engine)
    engine._slot.aborted = counted = _Counted([AbortedTransaction(7, n, n + 1, n + 2) for n in range(0, 2000, 2)])
    counted.looks.clear()
    engine._slot.add_aborted(engine._log.files[-1], last := AbortedTransaction(7, 2000, 2001, 2002))
    assert engine._slot.aborted[-1] == last
    assert len(counted.looks) <= len(counted) + 2, "copied once"


def test_aborted_transactions_are_kept_in_the_order_of_their_markers(tmp_path: Path) -> None:
    """A recovery may find one whose frame was lost."""
    engine = Process(tmp_path, file_bytes=1 << 20)[0]
    append_to(engine)
    first, second, third = (AbortedTransaction(producer_id, 0, producer_id, 0) for producer_id in (1, 2, 3))
    for transaction in (first, third, second, third, second):
        engine._slot.add_aborted(engine._log.files[-1], transaction)
    assert engine._slot.aborted == (first, second, third)
