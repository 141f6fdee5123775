"""Log files that were sealed without frames, emptied while no process used them, or cut off."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.primitives import Buffer, uuid_text
from storage.commitlog.files_ahead import FILES_AHEAD
from storage.commitlog.frames import FILE_HEADER, Frame, parse_file_header, scan
from storage.commitlog.log_file import parse_log_name
from storage.io.disk import Disk, File, StorageError
from tests.support.segments import NOW_MS, batch, infos
from tests.unit.storage.commitlog.test_cleaning import cleaned, runs
from tests.unit.storage.commitlog.test_commit_log import Process, append_to, bytes_of, damage, sync

TOPIC = uuid_text(b"t" * 16)


class _FullFile(File):
    _disk: _FullDisk

    def _write_some(self, buffer: Buffer, position: int) -> int:
        return self._write_some_of([buffer], position)

    def _write_some_of(self, buffers: Sequence[Buffer], position: int) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "")
        return super()._write_some_of(buffers, position)


class _FullDisk(Disk):
    """A file system that reserves no space, so a write may fail; the removal of a log file makes space."""

    is_full = False

    def space(self, path: str) -> tuple[int, int]:
        total, free = super().space(path)
        return total, 0 if self.is_full else free

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        super().unlink(path, missing_ok=missing_ok)
        self.is_full &= not path.endswith(".clog")

    def open(self, path: str, *, write: bool, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        return _FullFile(self, path, os.dup(file.fileno()))


def with_frames(process: Process) -> list[Path]:
    return [path for path in process.paths(".clog") if path.stat().st_size > FILE_HEADER.size]


def closed(root: Path) -> Process:
    """A closed log of two partitions; its last file is small."""
    process = Process(root)
    for number in range(30):
        append_to(process[number % 2])
    process.log.close()
    return process


def test_a_last_file_that_was_sealed_without_frames_costs_no_partition(tmp_path: Path) -> None:
    disk = _FullDisk()
    process = Process(tmp_path, disk)
    kept = append_to(process[0])
    process.log.finish_active()
    engine = process[0]
    data = batch(1)
    append = engine.reserve(len(data), infos(data), NOW_MS)
    disk.is_full = True
    with pytest.raises(StorageError):
        engine.write(append, data)
    disk.is_full = False
    process.log.close()
    for _ in range(2):
        again = Process(tmp_path)
        assert bytes_of(again[0]) == kept
        kept += append_to(again[0])
        again.log.close()
    assert bytes_of(Process(tmp_path)[0]) == kept


def test_a_sealed_file_that_was_cut_off_behind_its_header_names_its_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = closed(tmp_path)
    path = with_frames(process)[-1]
    os.truncate(path, FILE_HEADER.size)
    caplog.clear()
    Process(tmp_path).log.open()
    assert f"{path} has lost its end" in caplog.text
    for number in (0, 1):
        assert f"{TOPIC}-{number} lost its records from offset " in caplog.text


@pytest.mark.parametrize("size", [0, FILE_HEADER.size - 1])
def test_records_behind_an_emptied_file_survive_a_kill(tmp_path: Path, size: int) -> None:
    process = closed(tmp_path)
    path = with_frames(process)[-1]
    sealed_size = path.stat().st_size
    os.truncate(path, size)
    again = Process(tmp_path)
    again.log.open()
    while path.stat().st_size <= sealed_size:  # as long as its old queue file says
        append_to(again[0])
        append_to(again[1])
    sync(again[0])
    expected = [bytes_of(again[number]) for number in (0, 1)]
    killed = Process(tmp_path)
    assert [bytes_of(killed[number]) for number in (0, 1)] == expected


@pytest.mark.parametrize("has_queue", [True, False])
def test_an_emptied_run_costs_only_what_was_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_queue: bool
) -> None:
    process, contents = cleaned(tmp_path, 6, 40)
    (path, *others) = runs(process)
    assert others
    if has_queue:
        os.truncate(path, 0)
    else:
        damage(path, 5)
        path.with_suffix(".queue").unlink()
    for _ in range(2):
        caplog.clear()
        again = Process(tmp_path)
        for number, data in contents.items():
            found = bytes_of(again[number])
            assert found
            assert data.endswith(found)
        partitions = ", ".join([f"{TOPIC}-{number}" for number in contents]) if has_queue else "its partitions"
        assert f"{path} has no valid header: the records of {partitions} in it are lost" in caplog.text
        append_to(again[0])
        again.log.close()
        contents = {number: bytes_of(Process(tmp_path)[number]) for number in contents}


def test_the_partitions_of_a_lost_end_of_a_run_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process, _ = cleaned(tmp_path, 6, 40)
    path = runs(process)[0]
    last = next(process[4].view().entries_from(0))[1]
    os.truncate(path, last.position)  # that of partition 2 is whole
    caplog.clear()
    Process(tmp_path).log.open()
    assert f"{TOPIC}-4 lost records up to offset " in caplog.text
    assert f": they were in the lost end of {path}" in caplog.text
    assert f"{TOPIC}-2 lost" not in caplog.text


def test_a_start_on_a_full_disk_uses_the_space_of_a_file_that_was_created_ahead(tmp_path: Path) -> None:
    process = Process(tmp_path)
    expected = append_to(process[0]) + append_to(process[0])
    unused = [path for path in process.paths(".clog") if path not in with_frames(process)]
    assert len(unused) == FILES_AHEAD
    disk = _FullDisk()
    disk.is_full = True
    killed = Process(tmp_path, disk)
    assert bytes_of(killed[0]) == expected
    assert [path.exists() for path in unused] == [True, False]


@pytest.mark.parametrize("lost_frames", [1, 2])
def test_a_file_is_removed_if_the_one_before_it_has_lost_its_last_frames(tmp_path: Path, lost_frames: int) -> None:
    """A power cut may keep a later write and lose an earlier one, if neither was synced."""
    process = Process(tmp_path)
    written: list[bytes] = []
    while len(with_frames(process)) < 2:
        written.append(append_to(process[0]))
    append_to(process[1])
    path, later = with_frames(process)
    path.with_suffix(".queue").unlink(missing_ok=True)
    os.truncate(path, frame_ends(path)[-1 - lost_frames])
    again = Process(tmp_path)
    assert (again[1].end_offset, later.exists()) == (0, False)
    kept = bytes_of(again[0])
    assert kept
    assert b"".join(written[: -1 - lost_frames]).startswith(kept)


def frame_ends(path: Path) -> list[int]:
    """Where the frames of a log file end."""
    name = parse_log_name(path.name)
    assert name is not None
    file = Disk().open(str(path), write=False)
    file_id = parse_file_header(file.pread(FILE_HEADER.size, 0), name.start)
    assert file_id is not None
    found = scan(file, file_id, name.start, path.stat().st_size)
    return [frame.end - name.start for frame in found if isinstance(frame, Frame)]
