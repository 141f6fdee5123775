"""The log manager with corrupt files, and with logs that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ErrorCode, KafkaError
from storage.directories import log_retention
from storage.directories.log_directory import CLEAN_SHUTDOWN
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import FIRST_DIRTY, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, read_offsets
from storage.io.disk import Disk
from storage.log.log import Log
from tests.support.logs import NOW_MS, append, retained
from tests.unit.storage.directories.test_log_manager import created, started, write_checkpoints


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, FIRST_DIRTY])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_corrupt_checkpoint_is_ignored_and_rewritten(
    manager: LogManager, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, is_clean: bool
) -> None:
    for value in "abc":
        append(created(manager), value)
    manager.shutdown()
    if not is_clean:
        (tmp_path / CLEAN_SHUTDOWN).unlink()
    (tmp_path / name).write_bytes(b"0\n1\nt 0 \xff\n")
    again = started(tmp_path)
    assert [name in record.getMessage() for record in caplog.records] == [True]
    log = created(again)
    assert append(log, "d") == 3
    log.high_watermark = 4
    write_checkpoints(again)
    again.shutdown()
    assert read_offsets(Disk(), f"{tmp_path}/{RECOVERY_POINTS}") == {("t", 0): 4}


@pytest.mark.parametrize("text", ["version: 1\ntopic_id: uLkEB2t9R42XWGd6Vkop6A", "version: 0\ntopic_id: " + "?" * 22])
def test_a_log_with_a_corrupt_topic_id_belongs_to_the_topic_of_its_name(
    manager: LogManager, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    append(created(manager), "a")
    manager.shutdown()
    metadata = tmp_path / "t-0" / "partition.metadata"
    before = metadata.read_bytes()
    metadata.write_text(text)
    assert append(created(started(tmp_path)), "b") == 1
    assert "partition.metadata" in caplog.text
    assert metadata.read_bytes() == before


def test_retention_skips_a_log_that_a_thread_is_opening(manager: LogManager, tmp_path: Path) -> None:
    append(created(manager), "a")
    manager.shutdown()
    manager = started(tmp_path)
    log = created(manager)
    opening = log.open_lookup()
    assert list(retained(manager, NOW_MS)) == []
    opening.run()
    opening.finish()
    assert list(retained(manager, NOW_MS)) == [log]


def test_retention_continues_after_a_log_that_cannot_be_opened(
    manager: LogManager, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [created(manager, partition=partition) for partition in range(2)]
    for log in logs:
        append(log, "a")

    def refuse(_: Log, wall_ms: int) -> bool:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no log at {wall_ms}")

    monkeypatch.setattr(log_retention, "retain", refuse)
    assert list(retained(manager, NOW_MS)) == logs
    assert f"retention of t-1 failed: no log at {NOW_MS}" in caplog.text
