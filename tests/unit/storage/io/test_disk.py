"""File system access (storage/io/disk.py)."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.io.disk import Disk, StorageError, sync_results
from tests.support.faulty_disk import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_pread_returns_less_only_at_the_end_of_the_file(disk: FaultyDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    file = disk.open(f"{tmp_path}/f", write=False)
    disk.read_limit = 3
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(8, 6) == b"6789"
    assert file.pread(8, 10) == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_pwrite_continues_after_short_writes(disk: FaultyDisk, tmp_path: Path, kind: type) -> None:
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    disk.write_limit = 4
    file.pwrite(kind(b"hello, world"), 3)
    assert (tmp_path / "f").read_bytes() == b"\0\0\0hello, world"
    assert [length for _, _, length in disk.writes] == [12, 8, 4]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_errors_have_path_and_errno(disk: FaultyDisk, tmp_path: Path, code: int) -> None:
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    disk.fail_writes = disk.fail_reads = disk.fail_syncs = code
    with pytest.raises(StorageError, match=r"^Cannot write .*/f: .*\.$") as caught:
        file.pwrite(b"x", 0)
    assert caught.value.errno == code
    assert caught.value.path == f"{tmp_path}/f"
    with pytest.raises(StorageError, match="Cannot read"):
        file.pread(1, 0)
    with pytest.raises(StorageError, match="Cannot sync"):
        file.sync()


def test_a_write_on_a_full_disk_may_leave_a_part(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    disk.space_left = 5
    with pytest.raises(StorageError) as caught:
        file.pwrite(b"0123456789", 0)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "f").read_bytes() == b"01234"


def test_every_path_operation_raises_storage_error(tmp_path: Path) -> None:
    disk = Disk()
    nowhere = f"{tmp_path}/no/where"
    (tmp_path / "file").write_bytes(b"")
    for call in (
        lambda: disk.open(nowhere, write=True, create=True),
        lambda: disk.open(nowhere, write=False),
        lambda: disk.listdir(nowhere),
        lambda: disk.make_dirs(f"{tmp_path}/file/below"),
        lambda: disk.rename(nowhere, nowhere + "2"),
        lambda: disk.unlink(nowhere),
        lambda: disk.size(nowhere),
        lambda: disk.modified_ms(nowhere),
        lambda: disk.read(nowhere),
        lambda: disk.sync_dir(nowhere),
        lambda: disk.lock(nowhere),
        lambda: disk.space(nowhere),
        lambda: disk.replace_atomically(nowhere, b""),
    ):
        with pytest.raises(StorageError, match=r"^Cannot .*\.$") as caught:
            call()
        assert caught.value.errno in {errno.ENOENT, errno.ENOTDIR, errno.EEXIST}
    disk.unlink(nowhere, missing_ok=True)
    disk.remove_tree(nowhere)
    assert disk.open_files == 0


def test_a_deleted_file_stays_readable_while_open(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    file.pwrite(b"still here", 0)
    disk.rename(f"{tmp_path}/f", f"{tmp_path}/f.deleted")
    disk.unlink(f"{tmp_path}/f.deleted")
    assert file.pread(10, 0) == b"still here"


def test_descriptors_are_counted_and_closed_with_the_last_reference(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    other = file
    file.pwrite(b"12345", 0)
    mapping = file.map(5)
    assert disk.open_files == 2
    del file
    assert disk.open_files == 2
    del other
    assert disk.open_files == 1
    assert mapping[:] == b"12345"
    mapping.close()
    mapping.close()
    assert disk.open_files == 0


def test_an_unreferenced_mapping_closes_its_descriptor(tmp_path: Path) -> None:
    disk = Disk()
    file = disk.open(f"{tmp_path}/f", write=True, create=True)
    file.truncate(1)
    mapping = file.map(1)
    del mapping
    gc.collect()
    assert disk.open_files == 1
    file.close()
    assert file.fileno() == -1
    assert disk.open_files == 0


def test_a_mapping_is_read_only(tmp_path: Path) -> None:
    file = Disk().open(f"{tmp_path}/f", write=True, create=True)
    file.pwrite(b"12345", 0)
    mapping = file.map(5)
    with pytest.raises(TypeError):
        mapping[0] = 1
    with pytest.raises(StorageError, match="Cannot map"):
        file.map(mmap.PAGESIZE * 2)


def test_a_sync_after_a_failed_one_fails_too(disk: FaultyDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "log"), write=True, create=True)
    disk.fail_syncs = errno.EIO
    with pytest.raises(StorageError, match="Cannot sync"):
        file.sync()
    disk.fail_syncs = 0
    with pytest.raises(StorageError, match="Cannot sync"):
        file.sync()
    assert disk.sync_files([file]).keys() == {file}


def test_a_sync_after_a_failed_one_in_a_queue_fails_too(tmp_path: Path) -> None:
    file = Disk().open(str(tmp_path / "log"), write=True, create=True)
    assert sync_results([file], [errno.EIO]).keys() == {file}
    assert sync_results([file], [0]).keys() == {file}
    with pytest.raises(StorageError, match="Input/output error"):
        file.sync()


def test_replace_atomically_syncs_before_and_after_the_rename(disk: FaultyDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    disk.replace_atomically(path, b"old and long")
    assert disk.syncs == [path + ".tmp"]
    disk.replace_atomically(path, b"new")
    assert disk.read(path) == b"new"
    for disk.fail_writes, disk.fail_syncs in ((errno.ENOSPC, 0), (0, errno.EIO)):
        with pytest.raises(StorageError):
            disk.replace_atomically(path, b"newer")
        assert disk.read(path) == b"new"
    disk.fail_syncs = 0
    disk.reset_counters()
    disk.replace_atomically(path, b"last", sync=False)
    assert (disk.read(path), disk.syncs) == (b"last", [])
    assert disk.listdir(f"{tmp_path}") == ["f"]
    assert disk.open_files == 0


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    disk = Disk()
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "f").write_bytes(b"")
    disk.make_dirs(f"{tmp_path}/tree/a/b")
    disk.open(f"{tmp_path}/tree/a/f", write=True, create=True)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "keep")
    disk.remove_tree(f"{tmp_path}/tree")
    assert not disk.exists(f"{tmp_path}/tree")
    assert disk.exists(f"{tmp_path}/keep/f")


_ROOT = Path(__file__).parents[4]
_TRY_LOCK = """
import sys
from storage.io.disk import Disk, StorageError, sync_results
try:
    Disk().lock(sys.argv[1])
except StorageError as error:
    print(error)
else:
    print("locked")
"""


def test_a_lock_is_refused_to_this_and_another_process(tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"

    def other_process() -> str:
        command = [sys.executable, "-c", _TRY_LOCK, path]
        run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    lock = Disk().lock(path)
    with pytest.raises(StorageError, match="this process holds it already"):
        Disk().lock(path)
    assert other_process() == f"Cannot lock {path}: another process holds it."
    lock.release()
    lock.release()
    Disk().lock(path).release()
    assert other_process() == "locked"


def test_only_the_descriptors_of_deleted_files_are_closed_elsewhere(tmp_path: Path) -> None:
    disk = Disk()
    handed_over: list[int] = []
    disk.close_deleted = handed_over.append
    kept, deleted = (disk.open(f"{tmp_path}/{name}", write=True, create=True) for name in ("kept", "deleted"))
    kept_descriptor, descriptor = kept.fileno(), deleted.fileno()
    disk.unlink(deleted.path)
    del kept
    deleted.close()
    del deleted
    assert handed_over == [descriptor]
    assert disk.open_files == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept_descriptor)
    os.close(descriptor)


def test_a_file_on_a_disk_that_has_failed_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    file = disk.open(f"{tmp_path}/a", write=True, create=True)
    descriptor, fstat = file.fileno(), os.fstat

    def fail(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fstat", fail)
        file.close()
    assert disk.open_files == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        fstat(descriptor)


def test_space_and_sizes_are_reported(tmp_path: Path) -> None:
    disk = Disk()
    total_bytes, usable_bytes = disk.space(f"{tmp_path}")
    assert 0 < usable_bytes <= total_bytes
    disk.replace_atomically(f"{tmp_path}/f", b"12345")
    assert disk.size(f"{tmp_path}/f") == 5
    assert disk.modified_ms(f"{tmp_path}/f") > 1_700_000_000_000
    assert disk.is_dir(f"{tmp_path}")
    assert not disk.is_dir(f"{tmp_path}/f")
