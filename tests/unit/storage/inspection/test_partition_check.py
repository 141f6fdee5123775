"""The check of a partition in segment files (storage/inspection/partition_check.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.control_records import ControlType
from storage.inspection.issues import Severity
from storage.inspection.partition_check import PartitionCheck
from storage.io.checkpoint_file import LEADER_EPOCHS
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_offsets import Checkpoint
from storage.log.log_validator import AppendOrigin
from tests.support.compaction import COMPACTED, closed, compact, put
from tests.support.logs import ProducerInfo, append, append_records, log_at, marker


def end(log: Log, kind: ControlType, producer_id: int) -> None:
    append_records(log, marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)
    log.high_watermark = log.log_end_offset


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """An aborted transaction whose batch compaction has removed; of the last batch of a producer it keeps the header."""
    log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=100_000))
    put(log, ("a", "aborted"), producer=ProducerInfo(7, 0, 0, transactional=True))
    end(log, ControlType.ABORT, 7)
    put(log, ("b", "kept"), producer=ProducerInfo(7, 0, 1, transactional=True))
    end(log, ControlType.COMMIT, 7)
    closed(log)
    compact(log)
    log.close()
    return log


def check(log: Log) -> list[str]:
    found = PartitionCheck(Disk(), log.path, log.name, is_compacted=True, is_clean=True)
    found.run(log.checkpoint)
    return [issue.text for issue in found.issues if issue.severity > Severity.NOTE]


def test_an_aborted_transaction_whose_batches_compaction_has_removed_is_no_issue(log: Log) -> None:
    """Its marker and its entry stay for delete.retention.ms, a day."""
    assert check(log) == []


def test_an_entry_that_names_a_committed_transaction_is_an_issue_in_a_compacted_log(log: Log) -> None:
    """It would hide records from consumers with read_committed."""
    (index,) = [path for path in Path(log.path).glob("*.txnindex") if path.stat().st_size]
    entry = bytearray(index.read_bytes())
    entry[17], entry[25] = 2, 3  # first and last offset
    index.write_bytes(entry)
    assert check(log) == ["No transaction ends at 3."]


def test_epochs_that_a_crash_has_not_stored_are_an_issue_only_below_the_recovery_point(tmp_path: Path) -> None:
    """The file is written before the recovery point advances: the next start finds them in the batches."""
    log = log_at(tmp_path)
    append(log, "a")
    known = log.checkpoint
    assert known.recovery_point == 0

    def issues(known: Checkpoint, *, is_clean: bool) -> list[str]:
        found = PartitionCheck(Disk(), log.path, log.name, is_compacted=False, is_clean=is_clean)
        found.run(known)
        return [issue.path.rpartition("/")[2] for issue in found.issues]

    assert issues(known, is_clean=False) == []
    for is_clean, point in ((False, 1), (True, 0)):
        assert LEADER_EPOCHS in issues(known._replace(recovery_point=point), is_clean=is_clean)
