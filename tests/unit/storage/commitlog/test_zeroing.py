"""Zeros behind the frames of a commit log that is synced in small rounds."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import storage.commitlog.zeroing
from storage.commitlog.frames import FILE_HEADER
from storage.io.disk import StorageError
from tests.support.faulty_disk import FaultyDisk, FaultyFile
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of
from tests.unit.storage.inspection.test_commit_log_check import issues_of

FILE_BYTES = 64 << 10
STEP, PIECE, LARGE = 8000, 1000, 3000


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "STEP_BYTES": STEP, "_PIECE_BYTES": PIECE, "_SYNCED_BYTES": 2 * PIECE, "MAX_ROUND_BYTES": LARGE,
    }.items():  # fmt: skip
        monkeypatch.setattr(storage.commitlog.zeroing, name, value)


def process_on(root: Path, disk: FaultyDisk | None = None) -> Process:
    return Process(root, disk or FaultyDisk(), file_bytes=FILE_BYTES)


def run_round(process: Process) -> None:
    position, _ = process.log.unsynced()
    process.log.begin_round()()
    process.log.mark_durable(position)


def size_of(process: Process) -> int:
    return Path(process.log.files[-1].path).stat().st_size


def frames_end(process: Process) -> int:
    file = process.log.files[-1]
    return file.end - file.start


def test_a_round_writes_zeros_ahead_and_the_next_ones_use_them(tmp_path: Path) -> None:
    process = process_on(tmp_path)
    append_to(process[0])
    run_round(process)
    zeroed = size_of(process)
    assert zeroed == frames_end(process) + STEP
    content = b""
    while frames_end(process) + STEP // 2 <= zeroed:
        content += append_to(process[0])
        run_round(process)
        assert size_of(process) == zeroed or frames_end(process) + STEP // 2 > zeroed
    assert size_of(process) == zeroed + STEP
    assert bytes_of(process[0], 1) == content


def test_a_log_without_rounds_and_one_with_large_rounds_get_no_zeros(tmp_path: Path) -> None:
    process = process_on(tmp_path)
    append_to(process[0])
    assert size_of(process) == frames_end(process)
    for _ in range(3):
        append_to(process[0], LARGE + 1)
        run_round(process)
        assert size_of(process) == frames_end(process)


def test_zeros_end_with_the_file(tmp_path: Path) -> None:
    process = process_on(tmp_path)
    while len(process.log.files) == 1:
        append_to(process[0])
        run_round(process)
        assert size_of(process) <= FILE_BYTES
    process.log.close()
    assert [path.stat().st_size for path in process.paths(".clog")][:2] == [
        file.end - file.start for file in process.log.files
    ]


def test_appends_between_the_pieces_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They overtake the zeros."""
    disk = FaultyDisk()
    process = process_on(tmp_path, disk)
    content = [append_to(process[0])]
    later: list[Callable[[], None]] = []
    process.log.submit = later.append
    run_round(process)
    [write] = later
    content.append(append_to(process[0], 2500))
    sync = FaultyFile.sync

    def sync_and_append(file: FaultyFile) -> None:
        sync(file)
        content.append(append_to(process[0], 1700))

    monkeypatch.setattr(FaultyFile, "sync", sync_and_append)
    write()
    monkeypatch.setattr(FaultyFile, "sync", sync)
    assert len(content) > 3
    assert bytes_of(process[0]) == b"".join(content)
    assert bytes_of(process_on(tmp_path)[0]) == b"".join(content)


def test_a_finished_file_gets_no_zeros(tmp_path: Path) -> None:
    process = process_on(tmp_path)
    append_to(process[0])
    later: list[Callable[[], None]] = []
    process.log.submit = later.append
    run_round(process)
    process.log.submit = lambda run: run()
    process.log.finish_active()
    size = size_of(process)
    for run in later:
        run()
    assert size_of(process) == size == frames_end(process)
    append_to(process[0])
    run_round(process)
    assert size_of(process) == frames_end(process) + STEP


def test_a_start_after_a_crash_drops_the_zeros_and_reports_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = process_on(tmp_path)
    content = append_to(process[0])
    run_round(process)
    end = frames_end(process)
    assert issues_of(tmp_path) == []
    with caplog.at_level(logging.WARNING):
        again = process_on(tmp_path)
        assert bytes_of(again[0]) == content
    assert caplog.records == []
    assert process.paths(".clog")[0].stat().st_size == end


def test_a_file_follows_one_with_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The crash was before the finished file was sealed."""
    process = process_on(tmp_path)
    content = append_to(process[0])
    run_round(process)
    process.log.submit = lambda _: None
    process.log.finish_active()
    content += append_to(process[0])
    assert [path.suffix for path in process.paths("")].count(".queue") == 0
    assert issues_of(tmp_path) == []
    with caplog.at_level(logging.WARNING):
        assert bytes_of(process_on(tmp_path)[0]) == content
    assert caplog.records == []


def test_a_file_whose_frames_are_lost_and_whose_zeros_are_not_is_removed(tmp_path: Path) -> None:
    process = process_on(tmp_path)
    append_to(process[0])
    run_round(process)
    path = Path(process.log.files[-1].path)
    path.write_bytes(path.read_bytes()[: FILE_HEADER.size].ljust(STEP, b"\0"))
    again = process_on(tmp_path)
    assert bytes_of(again[0]) == b""
    append_to(again[0])


def test_a_full_disk_leaves_the_log_without_zeros(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = process_on(tmp_path, disk)
    content = append_to(process[0])
    disk.space_left = PIECE
    run_round(process)
    disk.space_left = None
    content += append_to(process[0])
    run_round(process)
    assert size_of(process) > frames_end(process)
    assert bytes_of(process[0]) == content


def test_a_failed_sync_of_zeros_is_an_error(tmp_path: Path) -> None:
    disk = FaultyDisk()
    process = process_on(tmp_path, disk)
    append_to(process[0])
    disk.fail_syncs = errno.EIO
    with pytest.raises(StorageError):
        process.log.begin_round()
