"""The dry run disk (storage/inspection/dry_run_disk.py)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.inspection.dry_run_disk import DryRunDisk, FileChange
from storage.io.disk import Disk, StorageError
from tests.support.executed_instructions import executed_instructions
from tests.support.logs import log_at


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_random_changes_equal_those_on_a_real_disk_which_stays_unchanged(tmp_path: Path) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        real, rehearsed = tmp_path / f"real{seed}", tmp_path / f"rehearsed{seed}"
        for directory in (real, rehearsed):
            directory.mkdir()
            for name in "abc":
                (directory / name).write_bytes(random.Random(name).randbytes(50))
        before = everything(rehearsed)
        disks = (Disk(), str(real)), (DryRunDisk(), str(rehearsed))
        for _ in range(30):
            act, name, other, at = rng.randrange(5), rng.choice("abcd"), rng.choice("abcd"), rng.randrange(70)
            data = rng.randbytes(rng.randrange(1, 20))
            outcomes = [_act(disk, root, act, name, other, at, data) for disk, root in disks]
            assert outcomes[0] == outcomes[1], f"seed {seed}"
        for disk, root in disks[1:]:
            assert {name: disk.read(f"{root}/{name}") for name in disk.listdir(root)} == {
                path.name: path.read_bytes() for path in real.iterdir()
            }, f"seed {seed}"
        assert everything(rehearsed) == before


def _act(disk: Disk, directory: str, act: int, name: str, other: str, at: int, data: bytes) -> object:
    path = f"{directory}/{name}"
    try:
        if act == 0:
            disk.open(path, write=True, create=True).pwrite(data, at)
        elif act == 1:
            disk.open(path, write=True).truncate(at)
        elif act == 2 and name != other:
            disk.rename(path, f"{directory}/{other}")
        elif act == 3:
            disk.unlink(path)
        else:
            file = disk.open(path, write=False)
            return file.size(), file.pread(20, at), disk.exists(path), sorted(disk.listdir(directory))
    except StorageError as error:
        return error.errno
    return None


def test_changes_lists_only_changed_files(tmp_path: Path) -> None:
    for name in ("cut", "gone", "same"):
        (tmp_path / name).write_bytes(b"0123456789")
    disk = DryRunDisk()
    disk.open(f"{tmp_path}/cut", write=True).truncate(4)
    disk.unlink(f"{tmp_path}/gone")
    disk.replace_atomically(f"{tmp_path}/same", b"0123456789")
    disk.replace_atomically(f"{tmp_path}/made", b"abc")
    assert disk.changes() == [
        FileChange(f"{tmp_path}/cut", 10, 4),
        FileChange(f"{tmp_path}/gone", 10, None),
        FileChange(f"{tmp_path}/made", None, 3),
    ]


def test_a_renamed_or_removed_directory_is_missing(tmp_path: Path) -> None:
    for name in ("t-0", "t-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
    disk = DryRunDisk()
    disk.rename(f"{tmp_path}/t-0", f"{tmp_path}/t-0.stray")
    disk.remove_tree(f"{tmp_path}/t-1")
    assert disk.listdir(str(tmp_path)) == []
    assert disk.renamed_directories == [f"{tmp_path}/t-0"]
    for name in ("t-0", "t-1"):
        assert not disk.exists(f"{tmp_path}/{name}/file")
        with pytest.raises(StorageError):
            disk.open(f"{tmp_path}/{name}/file", write=False)
        assert (tmp_path / name / "file").exists()
    assert sorted(disk.changes()) == []


def test_a_log_works_on_a_dry_run_disk(tmp_path: Path) -> None:
    log_at(tmp_path).close()
    before = everything(tmp_path)
    disk = DryRunDisk()
    log = log_at(tmp_path, disk=disk)
    assert log.log_end_offset == 0
    log.close()
    assert everything(tmp_path) == before


def test_changed_files_have_no_descriptors(tmp_path: Path) -> None:
    disk, open_files = DryRunDisk(), set()
    for name in "abc":
        (tmp_path / name).write_bytes(b"0123456789")
        disk.open(f"{tmp_path}/{name}", write=True).pwrite(b"x", 4)
        open_files.add(disk.open_files)
    assert len(open_files) == 1, "it rises with each changed file"
    assert disk.read(f"{tmp_path}/c") == b"0123x56789"


def test_a_directory_is_listed_without_comparing_the_changes_in_others(tmp_path: Path) -> None:
    def work(directory: Path, others: int) -> int:
        for number in range(others):
            (directory / f"t-{number}").mkdir(parents=True)
        disk = DryRunDisk()
        for number in range(0, others, 2):
            disk.replace_atomically(f"{directory}/t-{number}/file", b"x")
            disk.remove_tree(f"{directory}/t-{number + 1}")
        return executed_instructions(lambda: disk.listdir(f"{directory}/t-0"))

    assert work(tmp_path / "many", 100) == work(tmp_path / "few", 2)
