"""Gaps between segments: compaction or loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.records import headers
from storage.config.log_config import LogConfig
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from tests.support.compaction import COMPACTED, cleaned, closed, compact, kept, put
from tests.support.logs import NOW_MS, log_at

DELETED = replace(COMPACTED, cleanup_policy=frozenset({"delete"}))


def three_segments(root: Path, config: LogConfig = COMPACTED) -> Log:
    """Offsets 0 to 3, 4 to 7, and 8 in the active segment."""
    log = log_at(root, config=replace(config, segment_bytes=100_000))
    for number in range(8):
        put(log, (f"k{number}", "v"))
        if number % 4 == 3:
            closed(log)
    put(log, ("last", "v"))
    log.close()
    return log


def compacted(root: Path) -> Log:
    """The same with all segments but the active one compacted into one."""
    log = log_at(root, config=three_segments(root).config)
    cleaned(log, [("k5", "again")])
    log.close()
    return log


def without_its_end(root: Path, base_offset: int) -> None:
    """Truncate a segment before its last batch."""
    path = root / "t-0" / f"{base_offset:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[: headers(data)[-1][0]])


def recovered(root: Path, config: LogConfig, known: Checkpoint) -> Log:
    log = log_at(root, config=config, is_clean=False, checkpoint=known)
    log.open()
    return log


@pytest.mark.parametrize("config", [COMPACTED, DELETED], ids=["compacted", "not compacted"])
def test_a_lost_segment_end_ends_the_log(tmp_path: Path, config: LogConfig) -> None:
    three_segments(tmp_path)
    without_its_end(tmp_path, 4)
    log = recovered(tmp_path, config, Checkpoint())
    assert log.log_end_offset == 7
    assert [offset for offset, _, _ in kept(log)] == list(range(7))


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (DELETED, Checkpoint(recovery_point=8)),
        (DELETED, Checkpoint(first_dirty_offset=8)),
        (COMPACTED, Checkpoint(first_dirty_offset=8)),
    ],
    ids=["before the recovery point", "compacted once", "compacted"],
)
def test_a_gap_below_the_compacted_end_is_no_loss(tmp_path: Path, config: LogConfig, known: Checkpoint) -> None:
    three_segments(tmp_path)
    without_its_end(tmp_path, 4)
    log = recovered(tmp_path, config, known)
    assert log.log_end_offset == 9
    assert [offset for offset, _, _ in kept(log)] == [0, 1, 2, 3, 4, 5, 6, 8]


def test_a_gap_after_a_compacted_segment_is_no_loss(tmp_path: Path) -> None:
    """No checkpoint covers it: a crash during a compaction."""
    log = compacted(tmp_path)
    bases = sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*.log"))
    assert bases == [0, 10]
    put(log, ("more", "v"))
    log.close()
    without_its_end(tmp_path, 0)
    assert recovered(tmp_path, log.config, Checkpoint()).log_end_offset == 11


@pytest.mark.parametrize("config", [COMPACTED, DELETED], ids=["compacted", "not compacted now"])
def test_a_gap_after_a_segment_that_a_killed_cleaning_replaced_is_no_loss(tmp_path: Path, config: LogConfig) -> None:
    """Apache Kafka was killed while it compacted: no checkpoint covers it, and the segment lost only its end."""
    three_segments(tmp_path)
    source = tmp_path / "t-0" / f"{4:020d}.log"
    source.with_suffix(".log.deleted").write_bytes(source.read_bytes())
    without_its_end(tmp_path, 4)
    for _ in ("after Apache Kafka was killed", "after this broker was killed"):
        log = recovered(tmp_path, config, Checkpoint())
        assert [offset for offset, _, _ in kept(log)] == [0, 1, 2, 3, 4, 5, 6, 8]
        assert log.log_end_offset == 9


@pytest.mark.parametrize("offset", [6, 4])
def test_a_gap_after_a_truncation_is_a_loss_although_the_segment_was_replaced_before(
    tmp_path: Path, offset: int
) -> None:
    three_segments(tmp_path)
    log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=100_000))
    log.open()
    source = tmp_path / "t-0" / f"{4:020d}.log"
    source.with_suffix(".log.deleted").write_bytes(source.read_bytes())
    log.open().truncate(offset)
    for number in range(offset, 8):
        put(log, (f"other{number}", "v"))
    closed(log)
    put(log, ("last", "v"))
    log.close()
    without_its_end(tmp_path, 4)
    assert recovered(tmp_path, COMPACTED, Checkpoint()).log_end_offset == 7


def test_a_gap_after_recent_appends_is_a_loss_even_in_a_compacted_segment(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    (tmp_path / "t-0" / f"{10:020d}.log").unlink()  # the compacted one is appended to, as after a move
    log = log_at(tmp_path, config=log.config)
    end_offset = log.log_end_offset
    put(log, ("more", "v"))
    put(log, ("and more", "v"))
    log.open().roll(NOW_MS)
    log.close()
    without_its_end(tmp_path, 0)
    assert recovered(tmp_path, log.config, Checkpoint(recovery_point=end_offset - 1)).log_end_offset == end_offset + 1


def test_our_own_compaction_leaves_no_gap_between_segments(tmp_path: Path) -> None:
    log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=700))
    for number in range(64):
        put(log, (f"k{number % 3}" if number % 4 else f"own{number}", "v" * 50))
    closed(log)
    put(log, ("last", "v"))
    compact(log, NOW_MS)
    expected = kept(log)
    assert len(log.open().engine.segments()) > 3
    log.close()
    again = recovered(tmp_path, replace(log.config, cleanup_policy=frozenset({"delete"})), Checkpoint())
    assert kept(again) == expected
    assert again.log_end_offset == log.log_end_offset


def test_an_empty_segment_after_an_empty_one_is_a_loss(tmp_path: Path) -> None:
    log = log_at(tmp_path, config=DELETED)
    put(log, ("a", "v"))
    log.open().roll(NOW_MS)
    log.close()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    assert recovered(tmp_path, DELETED, Checkpoint()).log_end_offset == 0
