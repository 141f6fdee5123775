"""Opening a log with inconsistent parts, on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.control_records import ControlType
from protocol.records import parse_header
from storage.config.log_config import LogConfig
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk_lookup import wait_for_disk
from storage.log.log_offsets import Checkpoint
from storage.log.log_validator import AppendOrigin
from storage.log.producer_state import BatchMetadata, ProducerEntry, ProducerState
from storage.log.timestamp_lookup import first_at_or_after
from tests.support.logs import (
    BIG,
    NOW_MS,
    SMALL,
    WITH_FILES,
    MakeLog,
    ProducerInfo,
    append,
    append_records,
    fill,
    log_at,
    marker,
    produced,
    snapshots,
    values_of,
)


@pytest.mark.parametrize("point", [0, 3, 6, 7, 9])
def test_producer_state_is_the_same_after_a_crash(make: MakeLog, point: int) -> None:
    log = make()
    fill(log, 3, producer_id=5)
    fill(log, 6, producer_id=6)
    log.open().flush.begin()()
    before = {known: producer.batches[-1] for known, producer in log.open().producers.producers.items()}
    again = make(is_clean=False, checkpoint=Checkpoint(point, 0, 0))
    after = again.open().producers.producers
    assert {known: producer.batches[-1] for known, producer in after.items()} == before
    for producer in after.values():
        assert len(set(producer.batches)) == len(producer.batches), "no batch twice"
        assert list(producer.batches) == sorted(producer.batches)
    assert again.open().producers.snapshot() == log.open().producers.snapshot()


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_retried_batches_are_known_after_a_restart(make: MakeLog, is_clean: bool) -> None:
    """A snapshot has only the last batch; a client with five requests in flight may retry any of the last five."""
    log = make()
    for number in range(7):
        append(log, BIG, producer=ProducerInfo(5, 0, number))
        append(log, BIG, producer=ProducerInfo(6, 0, number))
    append(log, BIG, producer=ProducerInfo(6, 1, 0))
    log.open().flush.begin()()
    before = {known: producer.batches for known, producer in log.open().producers.producers.items()}
    if is_clean:
        log.close()
    again = make(is_clean=is_clean, checkpoint=Checkpoint(14, 0, 0))
    again.open()
    assert {known: producer.batches for known, producer in again.open().producers.producers.items()} == before
    assert append(again, BIG, producer=ProducerInfo(5, 0, 3)) == 6, "which is a duplicate"
    assert again.log_end_offset == 15


def test_batches_before_a_snapshot_may_be_corrupt(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 7, producer_id=5)
    log.close()
    for path in sorted((tmp_path / "t-0").glob("*.log"))[:-1]:
        content = bytearray(path.read_bytes())
        content[8:12] = b"\0\0\0\1"  # a length that none can have
        path.write_bytes(content)
    again = make()
    again.open()
    assert again.log_end_offset == 7
    assert [batch[1] for batch in again.open().producers.producers[5].batches][-1] == 6


@WITH_FILES
def test_snapshots_above_the_recovery_point_are_rewritten(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 9, producer_id=5)
    before = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.snapshot")}
    for path in before:
        path.write_bytes(path.read_bytes()[:-1])
    again = make(is_clean=False)
    again.open()
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.snapshot")} == before
    again.open().roll(NOW_MS)
    end = make(is_clean=False)
    end.open()
    assert snapshots(tmp_path) == [2, 4, 6, 8, 9], "also where a segment begins that is empty"


def test_a_log_ends_before_an_append_that_was_not_written_when_the_next_one_was(make: MakeLog) -> None:
    """Threads write at the same time if the disk is slow; neither append was published when the process was killed."""
    log = make()
    append(log, b"1", b"2")
    prepare = log.open().appends.prepare
    _, later = (wait_for_disk(prepare, produced(b"x"), leader_epoch=0, wall_ms=NOW_MS) for _ in range(2))
    later.write()
    again = make(is_clean=False)
    assert again.log_end_offset == 2
    assert append(again, b"y") == 2


@WITH_FILES
def test_a_segment_started_by_an_unfinished_append_gets_a_snapshot(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 2, producer_id=5)
    wait_for_disk(log.open().appends.prepare, produced(BIG), leader_epoch=0, wall_ms=NOW_MS).write()
    assert snapshots(tmp_path) == []
    again = make(is_clean=False)
    assert again.log_end_offset == 3
    assert snapshots(tmp_path) == [2]
    again.high_watermark = 3
    again.open().trim(2, NOW_MS)
    assert list(make(is_clean=False, checkpoint=Checkpoint(0, 2, 2)).open().producers.producers) == [5]


@WITH_FILES
def test_a_corrupt_snapshot_at_the_recovery_start_is_replaced(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 5, producer_id=5)
    (tmp_path / "t-0" / f"{4:020d}.snapshot").write_bytes(b"torn")
    again = make(is_clean=False, checkpoint=Checkpoint(5, 0, 5))
    assert again.log_end_offset == 5
    assert snapshots(tmp_path) == [2, 4]
    again.open().trim(4, NOW_MS)
    assert make(is_clean=False, checkpoint=Checkpoint(5, 4, 5)).open().producers.producers[5].batches[-1][1] == 4


@WITH_FILES
def test_without_its_snapshot_the_recovery_start_is_restored_from_the_batches_below_it(
    make: MakeLog, tmp_path: Path
) -> None:
    log = make()
    append(log, b"a", producer=ProducerInfo(5, 0, 0, transactional=True))
    log.open().roll(NOW_MS)
    append_records(log, marker(ControlType.ABORT, 5, 0), origin=AppendOrigin.COORDINATOR)
    (tmp_path / "t-0" / f"{1:020d}.snapshot").write_bytes(b"torn")
    make(is_clean=False, checkpoint=Checkpoint(1, 0, 0)).open()
    (snapshot,) = (tmp_path / "t-0").glob("*1.snapshot")
    restored = ProducerState("t-0")
    restored.restore(snapshot.read_bytes(), wall_ms=NOW_MS)
    assert restored.producers[5].txn_first_offset == 0, "the marker at offset 1 is not part of the snapshot"


@WITH_FILES
def test_a_corrupt_snapshot_is_deleted(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 3)
    log.close()
    (tmp_path / "t-0" / f"{3:020d}.snapshot").write_bytes(b"")
    make().open()
    assert snapshots(tmp_path) == [2]


@WITH_FILES
def test_unneeded_snapshots_are_deleted(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    for _ in range(3):
        append(log, "x")
        log.close()
    snapshot = (tmp_path / "t-0" / f"{3:020d}.snapshot").read_bytes()
    (tmp_path / "t-0" / f"{77:020d}.snapshot").write_bytes(snapshot)
    log = make()
    log.open()
    assert snapshots(tmp_path) == [3]
    ((due_ms, paths),) = log.files.deleted_files
    assert due_ms == 0, "deleting takes longer than all the rest, and may wait"
    assert [Path(path).name for path in paths] == [f"{2:020d}.snapshot.deleted"]
    assert Path(paths[0]).exists()


@WITH_FILES
def test_after_a_kill_a_later_snapshot_is_kept_but_not_read(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 5, producer_id=5)
    log.close()
    newest = tmp_path / "t-0" / f"{5:020d}.snapshot"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    again = make(is_clean=False, checkpoint=Checkpoint(4, 0, 5))
    again.open()
    assert newest.read_bytes() == whole[:-1]
    again.close()
    assert newest.read_bytes() == whole


def test_a_truncation_does_not_restore_an_invalid_snapshot(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 5)
    log.close()
    others = ProducerState("t-0")
    others.producers[5] = ProducerEntry(0, (BatchMetadata(0, 0, 4, 0, NOW_MS),), NOW_MS)
    (tmp_path / "t-0" / f"{5:020d}.snapshot").write_bytes(others.snapshot())
    append(make(), BIG)
    again = make(is_clean=False, checkpoint=Checkpoint(4, 0, 5))
    again.open().truncate(5)
    assert again.log_end_offset == 5
    assert again.open().producers.producers == {}


@WITH_FILES
def test_epochs_of_the_scanned_range_come_from_the_batches(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 2, epoch=1)
    fill(log, 2, epoch=5)
    log.open().flush.begin()()
    log.open().truncate(2)
    fill(log, 2, epoch=3)
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n5 2\n"
    again = make(is_clean=False)
    assert [again.open().epochs.epoch_at(offset) for offset in range(4)] == [1, 1, 3, 3]
    assert again.open().epochs.latest == 3


def test_epochs_outside_the_log_are_removed(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 6, epoch=2)
    log.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n4\n0 0\n1 1\n2 2\n7 6\n")
    again = make(checkpoint=Checkpoint(6, 4, 6))
    assert again.open().epochs.latest == 2
    assert [again.open().epochs.epoch_at(offset) for offset in (3, 4)] == [-1, 2]


@WITH_FILES
def test_a_cleanly_closed_log_is_not_replayed(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    fill(log, 5, producer_id=5)
    log.close()
    (tmp_path / "t-0" / f"{5:020d}.snapshot").unlink()
    assert make().open().producers.producers[5].batches[-1][1] == 4, "from the snapshot at 4"
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    assert make().open().producers.producers == {}


def test_with_log_append_time_all_records_have_one_timestamp() -> None:
    data = produced(*"abcd", timestamp_ms=100, step_ms=10)
    header = parse_header(data)
    header = header._replace(attributes=header.attributes | 8, max_timestamp=500)
    assert first_at_or_after(data, 0, header, 500, 2, max_bytes=1000) == (500, 2)
    assert first_at_or_after(data, 0, header, 501, 0, max_bytes=1000) is None


def test_epochs_and_producers_are_rebuilt_from_the_log_files_alone(make: MakeLog, tmp_path: Path) -> None:
    log = make()
    for number in range(5):
        append(log, BIG, producer=ProducerInfo(5, 0, number), epoch=number)
    log.close()
    for path in (tmp_path / "t-0").iterdir():
        if path.suffix != ".log":
            path.unlink()
    again = make(is_clean=False)
    assert [offset for offset, _ in values_of(again)] == list(range(5))
    assert [again.open().epochs.epoch_at(offset) for offset in range(5)] == list(range(5))
    assert append(again, "x", producer=ProducerInfo(5, 0, 5)) == 5


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", [b"0\n1\n0 x\n", b"\xff", b"7\n", b"0\n3\n0 0\n"])
@WITH_FILES
def test_an_unreadable_epoch_file_is_rebuilt_from_the_batches(
    make: MakeLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool, damage: bytes
) -> None:
    log = make()
    for number in range(9):
        append(log, BIG, epoch=number // 3)
    log.close()
    checkpoint = tmp_path / "t-0" / LEADER_EPOCHS
    before = checkpoint.read_bytes()
    checkpoint.write_bytes(damage)
    again = make(is_clean=is_clean)
    again.open()
    assert LEADER_EPOCHS in caplog.text
    assert [again.open().end_offset_for_epoch(epoch) for epoch in range(3)] == [(0, 3), (1, 6), (2, 9)]
    again.close()
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_snapshots_of_replaced_segments_are_deleted_at_the_open(tmp_path: Path, *, is_clean: bool) -> None:
    config = LogConfig(segment_bytes=400)  # a segment for each batch
    log = log_at(tmp_path, config=config)
    fill(log, 5)
    log.close()
    path = tmp_path / "t-0"
    logs = [path / f"{base:020d}.log" for base in range(3)]
    (path / f"{0:020d}.log.swap").write_bytes(b"".join([part.read_bytes() for part in logs]))
    again = log_at(tmp_path, config=config, is_clean=is_clean)
    assert [offset for offset, _ in values_of(again)] == list(range(5))
    assert [segment.base_offset for segment in again.open().engine.segments()] == [0, 3, 4]
    assert snapshots(tmp_path) == [3, 4, 5]


@pytest.mark.parametrize("value", ["x", BIG], ids=["from the start", "from an earlier snapshot"])
@WITH_FILES
def test_a_clean_log_with_a_corrupt_snapshot_replays_the_batches(make: MakeLog, tmp_path: Path, value: str) -> None:
    log = make()
    fill(log, 7, value, producer_id=5)
    log.close()
    newest = max((tmp_path / "t-0").glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-3])
    again = make()
    assert list(again.open().producers.producers) == [5]
    assert append(again, "x", producer=ProducerInfo(5, 0, 7)) == 7


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_corrupt_transaction_index_is_rebuilt_from_the_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    log = log_at(tmp_path, config=SMALL)
    append(log, BIG, producer=ProducerInfo(5, 0, 0, transactional=True))
    fill(log, 20)
    append_records(log, marker(ControlType.ABORT, 5, 0), origin=AppendOrigin.COORDINATOR)
    log.close()
    (index,) = (tmp_path / "t-0").glob("*.txnindex")
    assert int(index.stem) > 0
    before = index.read_bytes()
    for damage in (b"\0\1" + before[2:], before[:18] + bytes(8) + before[26:]):
        index.write_bytes(damage)
        again = log_at(tmp_path, config=SMALL, is_clean=is_clean)
        again.open()
        assert index.read_bytes() == before
        assert index.name in caplog.text


def test_the_loss_of_durable_records_is_logged(make: MakeLog, caplog: pytest.LogCaptureFixture) -> None:
    fill(make(), 3)
    assert make(is_clean=False, checkpoint=Checkpoint(3, 0, 3)).log_end_offset == 3
    assert caplog.text == ""
    assert make(is_clean=False, checkpoint=Checkpoint(5, 0, 5)).log_end_offset == 3
    assert "t-0 ends at offset 3, but was durable up to 5: records are lost" in caplog.text
