"""One partition's log, on both engines (storage/log.py, appends.py, retention.py, timestamps.py)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.compression import Compression
from protocol.errors import ErrorCode, KafkaError
from protocol.records import ControlType, headers
from storage.disk import StorageError
from storage.log import Checkpoint, Isolation, Log, Origin
from storage.log_config import LogConfig
from storage.validation import RejectedRecords
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import (
    EVERYTHING,
    NOW_MS,
    SMALL,
    Engines,
    Idempotent,
    append,
    bytes_of,
    log_at,
    marker,
    produced,
    scattered,
    segments,
    values_of,
)

BIG = "x" * 300
Make = Callable[..., Log]


@pytest.fixture(params=[segments, scattered], ids=["segments", "scattered"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found: Engines = request.param
    return found


@pytest.fixture
def make(tmp_path: Path, engines: Engines) -> Make:
    """Make the log of t-0 as a new process sees it."""

    def made(**options: object) -> Log:
        return log_at(tmp_path, engines=engines, **options)  # type: ignore[arg-type]

    return made


def refused(code: ErrorCode, act: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code == code
    return caught.value


def fill(log: Log, count: int, value: str = BIG, epoch: int = 0, step_ms: int = 0) -> None:
    for number in range(count):
        append(log, value, epoch=epoch, timestamp_ms=NOW_MS + number * step_ms)


# ---- append ----------------------------------------------------------------------------------------------


def test_offsets_and_leader_epoch_are_written_into_the_callers_bytes(make: Make) -> None:
    """appends.py rule 2; both lie outside the CRC."""
    log = make()
    append(log, "a", "b")
    frame = memoryview(bytearray(b"head") + produced("c", "d", "e"))[4:]
    info = log.append(frame, leader_epoch=7, wall_ms=NOW_MS)
    assert (info.base_offset, info.last_offset, info.leader_epoch, info.duplicate) == (2, 4, 7, False)
    assert (info.log_append_time_ms, info.log_start_offset) == (-1, 0)
    (_, header), *_ = headers(frame)
    assert (header.base_offset, header.leader_epoch) == (2, 7)
    assert values_of(log) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert bytes_of(log, 2) == bytes(frame)


def test_log_append_time_is_told(make: Make) -> None:
    """design D4."""
    log = make(config=replace(SMALL, message_timestamp_type="LogAppendTime"))
    info = log.append(produced("a", timestamp_ms=5), leader_epoch=0, wall_ms=NOW_MS)
    assert info.log_append_time_ms == NOW_MS
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0, 0)


def test_what_is_refused_changes_nothing(make: Make) -> None:
    """The next append gets the offset."""
    log = make()
    broken = produced("a")
    broken[-1] ^= 1
    refused(ErrorCode.CORRUPT_MESSAGE, lambda: log.append(broken, leader_epoch=0, wall_ms=NOW_MS))
    with pytest.raises(RejectedRecords):
        log.append(produced("a", timestamp_ms=NOW_MS * 2), leader_epoch=0, wall_ms=NOW_MS)
    error = refused(
        ErrorCode.RECORD_LIST_TOO_LARGE, lambda: log.append(produced("x" * 1000), leader_epoch=0, wall_ms=NOW_MS)
    )
    assert "maximum configured segment size of 1000" in str(error.message)
    assert log.log_end_offset == 0
    assert append(log, "a") == 0


def test_nothing_is_read_before_the_commit(make: Make) -> None:
    """appends.py rule 1."""
    log = make()
    prepared = log.prepare(produced("a", "b"), leader_epoch=0, wall_ms=NOW_MS)
    log.write(prepared)
    assert log.log_end_offset == 0
    assert values_of(log) == []
    assert log.commit(prepared, NOW_MS).last_offset == 1
    assert values_of(log) == [(0, "a"), (1, "b")]


def test_appends_under_way_have_their_offsets_one_after_the_other(make: Make) -> None:
    """appends.py rule 1: written in any order, committed in theirs."""
    log = make()
    first, second, third = (log.prepare(produced(BIG, value), leader_epoch=0, wall_ms=NOW_MS) for value in "abc")
    for prepared in (third, first, second):
        log.write(prepared)
    assert [log.commit(prepared, NOW_MS).base_offset for prepared in (first, second, third)] == [0, 2, 4]
    assert [value for _, value in values_of(log)][1::2] == ["a", "b", "c"]


def test_commits_out_of_order_are_our_fault(make: Make) -> None:
    """appends.py rule 1."""
    log = make()
    log.prepare(produced("a"), leader_epoch=0, wall_ms=NOW_MS)
    later = log.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    with pytest.raises(AssertionError):
        log.commit(later, NOW_MS)


def test_an_abort_ends_all_that_was_prepared_later(make: Make) -> None:
    """appends.py rule 1: their offsets and sequences are free again."""
    log = make()
    append(log, "kept")
    who = [Idempotent(9, 0, sequence) for sequence in range(3)]
    lost = [log.prepare(produced(BIG, BIG, producer=p), leader_epoch=0, wall_ms=NOW_MS) for p in who[::2]]
    first, second = lost
    log.write(second)
    log.abort(first)
    log.abort(second)
    refused(ErrorCode.KAFKA_STORAGE_ERROR, lambda: log.commit(second, NOW_MS))
    refused(ErrorCode.KAFKA_STORAGE_ERROR, lambda: log.commit(first, NOW_MS))
    assert append(log, "next", producer=who[0]) == 1
    assert append(log, "more", producer=who[1]) == 2
    assert values_of(log) == [(0, "kept"), (1, "next"), (2, "more")]


def test_an_earlier_append_survives_the_abort_of_a_later_one(make: Make) -> None:
    """appends.py rule 1."""
    log = make()
    first = log.prepare(produced("a"), leader_epoch=0, wall_ms=NOW_MS)
    second = log.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    log.abort(second)
    log.write(first)
    log.commit(first, NOW_MS)
    assert append(log, "c") == 1
    assert values_of(log) == [(0, "a"), (1, "c")]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_append_leaves_the_log_as_it_was(make: Make, code: int) -> None:
    """A full disk: the error goes up, nothing of the batch is seen, now or after a crash."""
    disk = FaultyDisk()
    log = make(disk=disk)
    fill(log, 2, "kept")
    for room in (0, 10, 60):
        disk.room, disk.fail_writes = room, code
        with pytest.raises(StorageError):
            append(log, "lost", producer=Idempotent(9, 0, 0))
        disk.room, disk.fail_writes = None, 0
        assert values_of(log) == [(0, "kept"), (1, "kept")]
    assert append(log, "next", producer=Idempotent(9, 0, 0)) == 2
    again = make(is_clean=False)
    assert values_of(again) == [(0, "kept"), (1, "kept"), (2, "next")]


# ---- producers -------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_told_where_it_lies(make: Make) -> None:
    """appends.py rule 3: nothing to write, the old offsets."""
    log = make()
    append(log, "before")
    append(log, "a", "b", producer=Idempotent(5, 0, 0))
    size = log.size_bytes
    prepared = log.prepare(produced("a", "b", producer=Idempotent(5, 0, 0)), leader_epoch=3, wall_ms=NOW_MS)
    assert prepared.size == 0
    log.write(prepared)
    info = log.commit(prepared, NOW_MS)
    assert info == prepared.duplicate
    assert (info.base_offset, info.last_offset, info.duplicate) == (1, 2, True)
    assert (log.size_bytes, log.log_end_offset, log.latest_epoch) == (size, 3, 0)


def test_sequences_are_checked_against_what_is_under_way(make: Make) -> None:
    """design D12a: prepared but not committed counts."""
    log = make()
    first = log.prepare(produced("a", producer=Idempotent(5, 0, 0)), leader_epoch=0, wall_ms=NOW_MS)
    second = log.prepare(produced("b", producer=Idempotent(5, 0, 1)), leader_epoch=0, wall_ms=NOW_MS)
    refused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        lambda: log.prepare(produced("d", producer=Idempotent(5, 0, 3)), leader_epoch=0, wall_ms=NOW_MS),
    )
    for prepared in (first, second):
        log.write(prepared)
        log.commit(prepared, NOW_MS)
    assert values_of(log) == [(0, "a"), (1, "b")]


@pytest.mark.parametrize("is_clean", [True, False])
def test_producers_survive_a_restart(make: Make, is_clean: bool) -> None:
    """recovery.py rules 1 and 2: from the snapshot of the close, or from the batches."""
    log = make()
    for number in range(7):
        append(log, BIG, producer=Idempotent(5, 0, number))
    if is_clean:
        log.close()
    again = make(is_clean=is_clean)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: append(again, "x", producer=Idempotent(5, 0, 9)))
    assert again.append(produced(BIG, producer=Idempotent(5, 0, 6)), leader_epoch=0, wall_ms=NOW_MS).duplicate
    assert append(again, "x", producer=Idempotent(5, 0, 7)) == 7


def test_each_new_segment_has_a_snapshot_of_what_lies_before_it(make: Make, tmp_path: Path) -> None:
    """snapshots.py rule 2; one that an aborted append brought is not there (appends.py rule 5)."""
    log = make()
    for number in range(5):
        append(log, BIG, producer=Idempotent(5, 0, number))
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.snapshot")) == [
        f"{2:020d}.snapshot",
        f"{4:020d}.snapshot",
    ]
    append(log, BIG, producer=Idempotent(5, 0, 5))
    log.abort(log.prepare(produced(BIG, producer=Idempotent(5, 0, 6)), leader_epoch=0, wall_ms=NOW_MS))
    assert not (tmp_path / "t-0" / f"{6:020d}.snapshot").exists()
    log.close()
    assert (tmp_path / "t-0" / f"{6:020d}.snapshot").exists()
    again = make()
    again.open()
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.snapshot")) == [
        f"{offset:020d}.snapshot" for offset in (2, 4, 6)
    ]


def test_a_broken_snapshot_is_replaced_by_a_longer_replay(make: Make, tmp_path: Path) -> None:
    """snapshots.py rule 1."""
    log = make()
    for number in range(7):
        append(log, BIG, producer=Idempotent(5, 0, number))
    log.close()
    newest = max((tmp_path / "t-0").glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-3])
    again = make()
    assert append(again, "x", producer=Idempotent(5, 0, 7)) == 7


# ---- transactions ----------------------------------------------------------------------------------------


def transaction(log: Log, producer_id: int, kind: ControlType, *values: str) -> None:
    append(log, *values, producer=Idempotent(producer_id, 0, 0, transactional=True))
    end(log, producer_id, kind)


def end(log: Log, producer_id: int, kind: ControlType) -> None:
    log.append(marker(kind, producer_id, 0), leader_epoch=0, wall_ms=NOW_MS, origin=Origin.COORDINATOR)


def test_an_undecided_transaction_holds_the_last_stable_offset(make: Make) -> None:
    """Rule 1; the marker counts when the high watermark has passed it (producers.py rule 6)."""
    log = make()
    append(log, "plain")
    append(log, "a", "b", producer=Idempotent(5, 0, 0, transactional=True))
    append(log, "behind")
    log.high_watermark = 4
    assert log.last_stable_offset == 1
    assert values_of(log, 0, Isolation.LAST_STABLE) == [(0, "plain")]
    assert len(values_of(log, 0, Isolation.HIGH_WATERMARK)) == 4
    end(log, 5, ControlType.COMMIT)
    assert log.last_stable_offset == 1
    log.high_watermark = 5
    assert log.last_stable_offset == 5
    assert len(values_of(log, 0, Isolation.LAST_STABLE)) == 4


@pytest.mark.parametrize("restart", ["none", "clean", "unclean"])
def test_aborted_transactions_of_the_range_are_told(make: Make, restart: str) -> None:
    """F10; also after a restart, from the index or from the batches."""
    log = make()
    transaction(log, 5, ControlType.ABORT, BIG)  # 0, marker 1
    transaction(log, 6, ControlType.COMMIT, BIG)  # 2, marker 3
    transaction(log, 7, ControlType.ABORT, BIG, "x")  # 4, 5, marker 6
    if restart == "clean":
        log.close()
    if restart != "none":
        log = make(is_clean=restart == "clean")
    log.high_watermark = log.log_end_offset
    first = log.read(0, EVERYTHING, Isolation.LAST_STABLE).aborted
    assert first is not None
    assert (first[0].producer_id, first[0].first_offset, first[0].last_offset) == (5, 0, 1)
    last = log.read(4, EVERYTHING, Isolation.LAST_STABLE).aborted
    assert last is not None
    assert [(found.producer_id, found.first_offset) for found in last] == [(7, 4)]
    assert log.read(0, EVERYTHING, Isolation.HIGH_WATERMARK).aborted is None
    assert log.read(7, EVERYTHING, Isolation.LAST_STABLE).aborted == []


def test_an_old_coordinator_may_not_end_a_transaction(make: Make) -> None:
    """producers.py rule 3, for markers."""
    log = make()
    append(log, "a", producer=Idempotent(5, 0, 0, transactional=True))
    log.append(
        marker(ControlType.COMMIT, 5, 0, coordinator_epoch=4),
        leader_epoch=0,
        wall_ms=NOW_MS,
        origin=Origin.COORDINATOR,
    )
    refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: end(log, 5, ControlType.ABORT))
    assert log.log_end_offset == 2


# ---- follower --------------------------------------------------------------------------------------------


def test_a_follower_becomes_equal_to_its_leader_byte_by_byte(make: Make, tmp_path: Path) -> None:
    """D1: offsets, epochs, CRC kept; producers and epochs learnt from the batches."""
    leader = make()
    append(leader, "a", "b", producer=Idempotent(5, 0, 0))
    append(leader, "c", epoch=2)
    transaction(leader, 6, ControlType.ABORT, "d")
    follower = make(topic="u")
    everything = bytes_of(leader)
    info = follower.append_as_follower(everything + b"cut off", wall_ms=NOW_MS)
    assert info is not None
    assert (info.base_offset, info.last_offset) == (0, leader.log_end_offset - 1)
    assert bytes_of(follower) == everything
    assert follower.latest_epoch == 2
    assert [follower.epoch_of(offset) for offset in range(4)] == [0, 0, 2, 2]
    follower.high_watermark = info.last_offset + 1
    assert follower.read(0, EVERYTHING, Isolation.LAST_STABLE).aborted == leader.open().aborted(0, 100)
    assert append(follower, "x", producer=Idempotent(5, 0, 2), epoch=3) == 5


def test_a_follower_takes_gaps_but_no_repetition(make: Make) -> None:
    """A compacted leader skips offsets; what lies before our end is refused."""
    leader = make()
    fill(leader, 4, "x")
    parts = [bytes_of(leader, offset)[: len(bytes_of(leader, 3))] for offset in range(4)]
    follower = make(topic="u")
    follower.append_as_follower(parts[0], wall_ms=NOW_MS)
    follower.append_as_follower(parts[2], wall_ms=NOW_MS)
    assert [offset for offset, _ in values_of(follower)] == [0, 2]
    error = refused(ErrorCode.UNKNOWN_SERVER_ERROR, lambda: follower.append_as_follower(parts[1], wall_ms=NOW_MS))
    assert "less than the next offset 3" in str(error.message)
    assert follower.log_end_offset == 3


def test_a_follower_that_is_empty_begins_where_the_leaders_batch_does(make: Make) -> None:
    """After DeleteRecords the leader's start may lie inside a batch; what is before the start stays unread."""
    leader = make()
    append(leader, "a", "b", "c")
    follower = make(topic="u")
    follower.truncate_fully(1)
    follower.append_as_follower(bytes_of(leader), wall_ms=NOW_MS)
    assert (follower.log_start_offset, follower.log_end_offset) == (1, 3)
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: follower.read(0, 1, Isolation.LOG_END))
    assert [offset for offset, _ in values_of(follower, 1)] == [0, 1, 2], "whole batches are sent"


def test_a_follower_leaves_batches_of_a_later_epoch_out(make: Make) -> None:
    """They come from a leader of whom it has not heard."""
    leader = make()
    append(leader, "a", epoch=1)
    append(leader, "b", epoch=2)
    follower = make(topic="u")
    follower.append_as_follower(bytes_of(leader), leader_epoch=1, wall_ms=NOW_MS)
    assert values_of(follower) == [(0, "a")]
    assert follower.append_as_follower(bytes_of(leader, 1), leader_epoch=1, wall_ms=NOW_MS) is None


# ---- read ------------------------------------------------------------------------------------------------


def test_each_isolation_sees_up_to_its_bound(make: Make) -> None:
    """F2, F6, F11."""
    log = make()
    fill(log, 6, "x")
    log.high_watermark = 4
    for isolation, bound in ((Isolation.LOG_END, 6), (Isolation.HIGH_WATERMARK, 4), (Isolation.LAST_STABLE, 4)):
        assert [offset for offset, _ in values_of(log, 0, isolation)] == list(range(bound))
        for offset in range(bound, 7):
            info = log.read(offset, EVERYTHING, isolation)
            assert (info.regions, info.size) == ((), 0)
            assert info[2:6] == (4, 4, 0, 6)
    for offset in (-1, 7):
        refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda offset=offset: log.read(offset, 1, Isolation.LOG_END))
        refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda offset=offset: log.read_records(offset, 1))


def test_one_batch_is_given_however_large(make: Make) -> None:
    """F9."""
    log = make()
    append(log, BIG)
    assert log.read(0, 1, Isolation.LOG_END).size > 300
    assert log.read(0, 1, Isolation.LOG_END, min_one_batch=False).size == 0
    assert len(log.read_records(0, 1)) > 300


def test_the_high_watermark_stays_within_the_log(make: Make) -> None:
    """Rule 1."""
    log = make(known=Checkpoint(high_watermark=50))
    assert log.high_watermark == 50, "as checkpointed, as long as it is not open"
    fill(log, 6)
    log.high_watermark = 100
    assert log.high_watermark == 6
    log.trim(4, NOW_MS)
    log.high_watermark = 1
    assert log.high_watermark == 4


# ---- times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
def test_the_first_record_with_a_time_is_found_inside_its_batch(make: Make, compression: Compression) -> None:
    """Its own timestamp decides, whatever the codec."""
    log = make(config=LogConfig())
    for number in range(5):
        append(log, *"abcd", epoch=number, timestamp_ms=NOW_MS + 100 * number, step_ms=10, compression=compression)
    assert log.offset_for_timestamp(0) == (NOW_MS, 0, 0)
    assert log.offset_for_timestamp(NOW_MS + 111) == (NOW_MS + 120, 6, 1)
    assert log.offset_for_timestamp(NOW_MS + 131) == (NOW_MS + 200, 8, 2)
    assert log.offset_for_timestamp(NOW_MS + 430) == (NOW_MS + 430, 19, 4)
    assert log.offset_for_timestamp(NOW_MS + 431) is None
    assert log.offset_of_max_timestamp() == (NOW_MS + 430, 19, 4)


def test_records_before_the_start_of_the_log_are_not_found(make: Make) -> None:
    """The start may lie inside a batch whose latest record is before it."""
    log = make(config=LogConfig())
    log.append(produced("late"), leader_epoch=0, wall_ms=NOW_MS)
    builder = produced("a", "b", timestamp_ms=NOW_MS + 50, step_ms=-20)
    log.append(builder, leader_epoch=0, wall_ms=NOW_MS)
    append(log, "c", timestamp_ms=NOW_MS + 40)
    log.high_watermark = 4
    assert log.offset_for_timestamp(NOW_MS + 35) == (NOW_MS + 50, 1, 0)
    log.trim(2, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS + 35) == (NOW_MS + 40, 3, 0)
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS + 30, 2, 0)


def test_an_empty_log_has_no_times(make: Make) -> None:
    """None, and the caller answers -1."""
    log = make()
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


# ---- leader epochs ---------------------------------------------------------------------------------------


def test_an_epoch_begins_at_the_end_without_opening_the_log(make: Make) -> None:
    """Rule 2: becoming leader of 5,000 partitions opens none."""
    log = make()
    append(log, "a", epoch=1)
    log.close()
    again = make()
    again.assign_epoch(4)
    assert not again.is_open
    assert again.latest_epoch == 4
    assert again.end_offset_for_epoch(1) == (1, 1)
    assert again.end_offset_for_epoch(4) == (4, 1)
    assert again.end_offset_for_epoch(5) == (-1, -1)


def test_an_append_of_an_earlier_epoch_does_not_bring_it_back(make: Make) -> None:
    """appends.py rule 4: it was under way when the next epoch began."""
    log = make()
    append(log, "a", epoch=1)
    late = log.prepare(produced("b"), leader_epoch=1, wall_ms=NOW_MS)
    log.assign_epoch(2, log.log_end_offset)
    log.write(late)
    log.commit(late, NOW_MS)
    append(log, "c", epoch=2)
    assert log.latest_epoch == 2
    assert [log.epoch_of(offset) for offset in range(3)] == [1, 1, 2]


def test_epochs_are_found_again_after_a_crash(make: Make) -> None:
    """leader_epochs.py rule 3: the file was never written."""
    log = make()
    for epoch in (1, 3, 4):
        append(log, BIG, BIG, epoch=epoch)
    again = make(is_clean=False)
    assert [again.end_offset_for_epoch(epoch) for epoch in (1, 2, 3, 4)] == [(1, 2), (1, 2), (3, 4), (4, 6)]


# ---- cutting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
def test_truncate_takes_back_everything_that_came_later(make: Make, offset: int) -> None:
    """Records, epochs, producers, high watermark, flushed end, aborted transactions."""
    log = make()
    for number in range(6):
        append(log, BIG, epoch=number, producer=Idempotent(5, 0, number))
    log.sync_work()()
    log.flushed(6)
    log.high_watermark = 6
    assert log.truncate(offset) == (offset < 6)
    end_offset = min(offset, 6)
    assert log.log_end_offset == log.high_watermark == log.flushed_end_offset == end_offset
    assert log.latest_epoch == end_offset - 1
    assert [found for found, _ in values_of(log)] == list(range(end_offset))
    assert append(log, "next", producer=Idempotent(5, 0, end_offset), epoch=9) == end_offset


def test_truncate_below_the_first_segment_begins_anew_there(make: Make) -> None:
    """As Kafka: the leader's log ends before ours begins."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    log.trim(5, NOW_MS)
    assert log.truncate(2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    assert append(log, "x") == 2


def test_truncate_fully_forgets_all(make: Make, tmp_path: Path) -> None:
    """Snapshots and epochs too."""
    log = make()
    for number in range(6):
        append(log, BIG, epoch=number, producer=Idempotent(5, 0, number))
    log.truncate_fully(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    assert log.latest_epoch == -1
    assert not list((tmp_path / "t-0").glob("*.snapshot"))
    assert append(log, "x", producer=Idempotent(5, 0, 3)) == 100


def test_trim_moves_the_start_and_drops_whole_segments(make: Make) -> None:
    """DeleteRecords: not above the high watermark, never back."""
    log = make()
    fill(log, 7, epoch=1)
    log.high_watermark = 5
    error = refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.trim(6, NOW_MS))
    assert "larger than the high watermark 5" in str(error.message)
    log.trim(3, NOW_MS)
    assert (log.log_start_offset, log.open().start_offset) == (3, 2)
    log.trim(1, NOW_MS)
    assert log.log_start_offset == 3
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: log.read(2, 1, Isolation.LOG_END))
    assert [offset for offset, _ in values_of(log)] == [3, 4, 5, 6]
    assert log.epoch_of(3) == 1
    assert log.checkpoint.log_start_offset == 3


def test_a_trimmed_log_begins_there_again(make: Make) -> None:
    """recovery.py: from the checkpoint, or from the first segment when that is later."""
    log = make()
    fill(log, 7)
    log.high_watermark = 7
    log.trim(3, NOW_MS)
    log.close()
    assert make(known=log.checkpoint).log_start_offset == 3
    assert make().log_start_offset == 2


def test_a_log_that_ends_before_its_start_is_empty_there(make: Make) -> None:
    """recovery.py rule 4."""
    log = make()
    fill(log, 3, epoch=1)
    again = make(is_clean=False, known=Checkpoint(0, 10, 12))
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (10, 10, 10)
    assert again.latest_epoch == -1
    assert append(again, "x") == 10


# ---- retention -------------------------------------------------------------------------------------------


def kept(log: Log, wall_ms: int, **settings: object) -> list[int]:
    """What is left after retention with these settings."""
    log.update_config(replace(log.config, **settings))  # type: ignore[arg-type]
    log.retain(wall_ms)
    return [offset for offset, _ in values_of(log)]


def test_segments_go_by_the_age_of_their_latest_record(make: Make) -> None:
    """retention.py rule 2; the active one is rolled and goes too when all of it has expired."""
    log = make()
    fill(log, 6, step_ms=100)
    log.high_watermark = 6
    assert kept(log, NOW_MS + 1100, retention_ms=1000) == [0, 1, 2, 3, 4, 5]
    assert kept(log, NOW_MS + 1101) == [2, 3, 4, 5]
    assert kept(log, NOW_MS + 1301) == [4, 5]
    assert kept(log, NOW_MS + 1501) == []
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert append(log, "x") == 6


def test_segments_go_while_what_is_left_is_large_enough(make: Make) -> None:
    """retention.py rule 2, as Kafka counts it."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    size = log.size_bytes
    third = size // 3
    assert kept(log, NOW_MS, retention_bytes=size - third + 1) == [0, 1, 2, 3, 4, 5]
    assert kept(log, NOW_MS, retention_bytes=size - third) == [2, 3, 4, 5]
    assert kept(log, NOW_MS, retention_bytes=0) == []


def test_nothing_goes_at_or_above_the_high_watermark(make: Make) -> None:
    """retention.py rule 1."""
    log = make()
    fill(log, 6)
    log.high_watermark = 3
    assert kept(log, NOW_MS * 2, retention_ms=1) == [2, 3, 4, 5]


def test_without_the_policy_delete_only_what_is_before_the_start_goes(make: Make) -> None:
    """retention.py rule 3."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    assert kept(log, NOW_MS * 2, cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1) == [
        0, 1, 2, 3, 4, 5,
    ]  # fmt: skip
    assert kept(log, NOW_MS * 2, cleanup_policy=frozenset({"compact", "delete"})) == []


def test_retention_waits_for_appends_under_way(make: Make) -> None:
    """Rule 3."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    prepared = log.prepare(produced("x"), leader_epoch=0, wall_ms=NOW_MS)
    assert kept(log, NOW_MS * 2, retention_ms=1) == [0, 1, 2, 3, 4, 5]
    log.write(prepared)
    log.commit(prepared, NOW_MS)
    assert kept(log, NOW_MS * 2) == [4, 5, 6]


def test_a_closed_log_is_left_alone_until_something_may_expire(make: Make) -> None:
    """log_manager.py: a thousand idle partitions cost nothing at each turn."""
    log = make(config=replace(SMALL, retention_ms=1000))
    fill(log, 6, step_ms=100)
    log.sync_work()()
    log.flushed(6)
    log.high_watermark = 6
    assert log.is_retention_due(0)
    log.retain(NOW_MS)
    assert log.release()
    assert not log.is_retention_due(NOW_MS + 1100)
    assert log.is_retention_due(NOW_MS + 1101)
    log.update_config(replace(SMALL, retention_ms=10))
    assert log.is_retention_due(NOW_MS)


# ---- flush -----------------------------------------------------------------------------------------------


def test_the_recovery_point_moves_when_a_sync_has_succeeded(make: Make) -> None:
    """Rule 4."""
    disk = FaultyDisk()
    log = make(disk=disk)
    fill(log, 2, "x")
    assert (log.unflushed_messages, log.flushed_end_offset) == (2, 0)
    work = log.sync_work()
    append(log, "later")
    disk.forget_history()
    work()
    assert disk.syncs
    log.flushed(2)
    assert (log.unflushed_messages, log.flushed_end_offset) == (1, 2)
    assert log.checkpoint == Checkpoint(2, 0, 0)


def test_epochs_are_durable_before_the_recovery_point_moves(make: Make, tmp_path: Path) -> None:
    """leader_epochs.py rule 3."""
    disk = FaultyDisk()
    log = make(disk=disk)
    append(log, "x", epoch=3)
    assert not (tmp_path / "t-0" / "leader-epoch-checkpoint").exists()
    log.sync_work()()
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    assert any("leader-epoch-checkpoint" in path for path in disk.syncs)


def test_a_flush_is_due_by_number_by_time_and_after_a_roll(make: Make) -> None:
    """`flush.messages`, `flush.ms`, and a segment that is full (as Kafka)."""
    log = make(config=replace(SMALL, flush_ms=500, flush_messages=3))
    assert not log.is_flush_due(NOW_MS * 2)
    append(log, "x")
    assert not log.is_flush_due(NOW_MS + 499)
    assert log.is_flush_due(NOW_MS + 500)
    fill(log, 2, "x")
    assert log.is_flush_due(NOW_MS)
    log.sync_work()()
    log.flushed(3)
    assert not log.is_flush_due(NOW_MS * 2)
    fill(log, 2)
    assert not log.is_flush_due(NOW_MS)
    append(log, BIG)
    log.update_config(replace(SMALL))
    assert log.is_flush_due(NOW_MS)


# ---- life ------------------------------------------------------------------------------------------------


def test_a_log_opens_nothing_before_it_is_used(make: Make) -> None:
    """Rule 2, design D11."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    log.close()
    disk = FaultyDisk()
    again = make(disk=disk, known=log.checkpoint)
    assert again.checkpoint == Checkpoint(6, 0, 6)
    assert (again.high_watermark, again.name, again.topic_id) == (6, "t-0", log.topic_id)
    again.update_config(SMALL)
    again.assign_epoch(3)
    again.close()
    assert (again.is_open, disk.reads, disk.open_files) == (False, [], 0)
    assert again.log_end_offset == 6
    assert again.is_open


def test_a_log_is_released_only_when_all_is_flushed(make: Make) -> None:
    """Closed without a sync, it must not be taken for durable."""
    log = make()
    append(log, "a")
    assert not log.release()
    log.sync_work()()
    log.flushed(1)
    prepared = log.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    assert not log.release()
    log.abort(prepared)
    assert log.release()
    assert not log.is_open
    assert values_of(log) == [(0, "a")]


def test_an_offline_log_refuses_every_use(make: Make) -> None:
    """Rule 5."""
    log = make()
    append(log, "a")
    prepared = log.prepare(produced("b"), leader_epoch=0, wall_ms=NOW_MS)
    log.go_offline()
    log.abort(prepared)
    for act in (
        lambda: log.commit(prepared, NOW_MS),
        lambda: append(log, "c"),
        lambda: log.read(0, 1, Isolation.LOG_END),
        lambda: log.log_end_offset,
        lambda: log.truncate(0),
    ):
        refused(ErrorCode.KAFKA_STORAGE_ERROR, act)
    log.close()
    log.flushed(1)


def test_regions_outlive_the_log(make: Make, tmp_path: Path) -> None:
    """A deleted topic can still be sent."""
    log = make()
    append(log, BIG)
    region = log.read(0, EVERYTHING, Isolation.LOG_END).regions[0]
    log.delete()
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    assert len(os.pread(region.file.fileno(), region.length, region.position)) == region.length


def test_a_sync_that_comes_after_a_deletion_is_no_failure(make: Make, tmp_path: Path) -> None:
    """The thread finds another name, or nothing: the directory is not to blame."""
    log = make()
    fill(log, 5, epoch=2)
    before, after = log.sync_work(), log.sync_work()
    append(log, BIG, epoch=3)
    late = log.sync_work()
    before()
    log.delete()
    (tmp_path / "t-0").rename(tmp_path / "t-0.0-delete")
    after()
    late()
    assert not (tmp_path / "t-0").exists()


def test_a_snapshot_is_durable_when_the_recovery_point_has_passed_it(make: Make, tmp_path: Path) -> None:
    """snapshots.py rule 3; one that was trimmed away meanwhile does no harm."""
    disk = FaultyDisk()
    log = make(disk=disk)
    fill(log, 5)
    work = log.sync_work()
    log.high_watermark = 5
    log.trim(4, NOW_MS)
    disk.forget_history()
    work()
    assert any(path.endswith(f"{4:020d}.snapshot") for path in disk.syncs)
    disk.forget_history()
    log.sync_work()()
    assert not any(path.endswith(".snapshot") for path in disk.syncs)
