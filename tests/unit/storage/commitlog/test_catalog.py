"""The catalog of a commit log: derived from the queue files, used only if it is theirs."""

from __future__ import annotations

import errno
import os
import shutil
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from protocol.primitives import Buffer
from storage.commitlog import recovery
from storage.commitlog.catalog import CATALOG, merged, packed_state, slots_in
from storage.commitlog.frames import BIND_PAYLOAD, FILE_HEADER, HEAD_SIZE
from storage.commitlog.queue_file import HEADER
from storage.io.disk import Disk, File, StorageError
from tests.support.faulty_disk import FaultyDisk
from tests.unit.storage.commitlog.test_cleaning import clean, delete_odd, drop, fill
from tests.unit.storage.commitlog.test_commit_log import (
    Process,
    append_to,
    bytes_of,
    change_at_random,
    damage,
    state_of,
)

MAX = (1 << 63) - 1


def states(process: Process) -> dict[int, tuple[object, ...]]:
    return {number: (*state_of(process[number]), process[number].leader_epochs()) for number in range(6)}


def random_state(dice: Random, number: int) -> list[object]:
    def numbers(width: int, most: int) -> list[list[int]]:
        return [
            [dice.choice((0, 1, dice.randrange(MAX), MAX)) for _ in range(width)] for _ in range(dice.randrange(most))
        ]

    snapshots = [[offset, "AAEC" * dice.randrange(5)] for offset in sorted(dice.sample(range(1000), dice.randrange(3)))]
    return [
        number, dice.randbytes(16).hex(), dice.randrange(1 << 31), dice.randrange(1 << 31), dice.randrange(MAX), MAX,
        [*numbers(3, 3), [0, 1, -1]], numbers(2, 3), sorted(numbers(4, 3), key=itemgetter(2)), numbers(2, 4), snapshots,
        dice.choice(("", "orders", "größe")),
    ]  # fmt: skip


class TestStates:
    @pytest.mark.parametrize("seed", range(20))
    def test_a_packed_state_is_the_state_of_the_queue_file(self, seed: int) -> None:
        dice = Random(seed)
        made = [random_state(dice, number) for number in range(9)]
        assert [slot.state() for slot in slots_in(b"".join(map(packed_state, made)))] == made

    @pytest.mark.parametrize("seed", range(10))
    def test_changes_replace_add_and_remove_states(self, seed: int) -> None:
        dice = Random(seed)
        expected: dict[int, bytes] = {}
        packed = b""
        for _ in range(10):
            changes = {
                number: packed_state(random_state(dice, number)) for number in dice.sample(range(20), dice.randrange(6))
            }
            for number in dice.sample(range(20), 3):
                changes[number] = packed_state([number])
            expected.update(changes)
            packed = merged(packed, changes)
            assert packed == b"".join([expected[number] for number in sorted(expected)])


class TestUpdates:
    @pytest.mark.parametrize("seed", range(3))
    def test_a_rebuilt_catalog_is_the_one_that_was_updated_step_by_step(self, tmp_path: Path, seed: int) -> None:
        process = Process(tmp_path)
        change_at_random(process, Random(seed), 200)
        append_to(process[7])
        drop(process, 7)
        clean(process)
        for number in range(6):
            append_to(process[number], 900)
        process.log.close()
        path = tmp_path / "commitlog" / CATALOG
        written, expected = path.read_bytes(), states(process)
        path.unlink()
        assert states(Process(tmp_path)) == expected
        assert path.read_bytes() == written
        for derived in (*process.paths(".queue"), path):
            derived.unlink()
        assert states(Process(tmp_path)) == expected
        assert path.read_bytes() == written

    def test_a_start_does_not_read_the_states_in_old_queue_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process = Process(tmp_path)
        fill(process, 4, 40)
        expected = states(process)
        process.log.close()
        monkeypatch.setattr(recovery, "_CHECKED_BYTES", -1)
        disk = FaultyDisk()
        again = Process(tmp_path, disk)
        again.log.open()
        reads = [(position, length) for path, position, length in disk.reads if path.endswith(".queue")]
        assert len(reads) > 10
        assert set(reads) == {(0, HEADER.size)}
        assert states(again) == expected

    def test_a_full_disk_leaves_the_catalog_before(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        disk = _FullDisk()
        process = Process(tmp_path, disk)
        fill(process, 4, 10)
        path = tmp_path / "commitlog" / CATALOG
        before = path.read_bytes()
        disk.has_space_for_catalogs = False
        process.log.close()
        assert path.read_bytes() == before
        assert "The next start takes longer" in caplog.text
        assert states(Process(tmp_path)) == states(process)


class _FullDisk(Disk):
    """A disk without space for a catalog."""

    has_space_for_catalogs = True

    def write_temporary(self, path: str, data: Buffer, *options: Any, **flags: Any) -> File:
        if path.endswith(CATALOG) and not self.has_space_for_catalogs:
            raise StorageError("write", path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return super().write_temporary(path, data, *options, **flags)


class TestUse:
    @pytest.fixture
    def process(self, tmp_path: Path) -> Process:
        process = Process(tmp_path / "log")
        change_at_random(process, Random(5), 250)
        return process

    def test_a_damaged_catalog_is_made_again(self, process: Process) -> None:
        process.log.close()
        path = process.root / "commitlog" / CATALOG
        whole, expected = path.read_bytes(), states(process)
        for position in (0, 5, 9, 13, 30, 300, len(whole) - 1):
            damage(path, position)
            assert states(Process(process.root)) == expected
            assert path.read_bytes() == whole
        path.write_bytes(whole[:7])
        assert states(Process(process.root)) == expected

    def test_states_behind_an_older_catalog_are_read_from_the_queue_files(self, process: Process) -> None:
        path = process.root / "commitlog" / CATALOG
        older: list[bytes] = []
        for number in range(20):
            append_to(process[number % 6], 1500)
            older.append(path.read_bytes())
        expected = states(process)
        drop(process, 3)
        process.log.close()
        for data in older[::4]:
            path.write_bytes(data)
            again = Process(process.root)
            assert again[3].end_offset == 0
            assert states(again) == {**expected, 3: states(again)[3]}

    def test_the_catalog_of_another_log_is_not_used(self, process: Process, tmp_path: Path) -> None:
        process.log.close()
        other = Process(tmp_path / "other")
        for number in range(5):
            append_to(other[number], 1700)
        other.log.close()
        shutil.copy(other.root / "commitlog" / CATALOG, process.root / "commitlog" / CATALOG)
        assert states(Process(process.root)) == states(process)

    def test_a_catalog_without_its_last_file_is_not_used(self, process: Process) -> None:
        path = process.root / "commitlog" / CATALOG
        delete_odd(process, 6)
        process.log.close()
        before, expected = path.read_bytes(), {number: state_of(process[number]) for number in (0, 2, 4)}
        clean(process, is_full=True)
        assert path.read_bytes() != before
        path.write_bytes(before)
        again = Process(process.root)
        assert {number: state_of(again[number]) for number in (0, 2, 4)} == expected
        assert not any(again[number].end_offset for number in (1, 3, 5))

    def test_a_sealed_file_with_a_broken_header_is_read_by_its_queue_file(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        expected = append_to(process[0])
        process.log.close()
        process = Process(tmp_path)
        other = append_to(process[1])
        process.log.close()
        damage(process.paths(".queue")[-1].with_suffix(".clog"), 10)
        again = Process(tmp_path)
        assert (bytes_of(again[0]), bytes_of(again[1])) == (expected, other)
        process.paths(".queue")[-1].unlink()
        again = Process(tmp_path)
        assert bytes_of(again[0]) == expected
        assert not again[1].end_offset

    def test_damage_of_an_old_queue_file_is_found_in_the_background(
        self, process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        process.log.close()
        expected = states(process)
        queue, *_ = process.paths(".queue")
        whole = queue.read_bytes()
        damage(queue, len(whole) - 3)
        monkeypatch.setattr(recovery, "_CHECKED_BYTES", -1)
        again = Process(process.root)
        again.log.open()
        assert list(again.log.check_queues()) == [0] * len(process.paths(".queue"))
        assert "is damaged" in caplog.text
        assert states(Process(process.root)) == expected
        assert queue.read_bytes() == whole
        assert not list(Process(process.root, Disk()).log.check_queues())


class TestNumbers:
    def test_a_number_is_used_again_after_its_drop_is_in_a_sealed_file(self, tmp_path: Path) -> None:
        process = Process(tmp_path)
        for number in range(3):
            append_to(process[number])
        drop(process, 1)
        append_to(process[3])
        assert process[3]._slot.number == 3
        append_to(process[0], 1900)
        append_to(process[0], 1900)
        append_to(process[0], 1900)
        append_to(process[4])
        assert process[4]._slot.number == 1
        append_to(process[5])
        assert process[5]._slot.number == 4

    def test_a_number_without_a_frame_is_free_again(self, tmp_path: Path) -> None:
        disk = FaultyDisk()
        process = Process(tmp_path, disk)
        append_to(process[0])
        disk.space_left = 0
        with pytest.raises(StorageError):
            append_to(process[1])
        disk.space_left = None
        append_to(process[2])
        assert process[2]._slot.number == 1

    @pytest.mark.parametrize("seed", range(4))
    def test_partitions_with_used_numbers_have_their_own_batches(self, tmp_path: Path, seed: int) -> None:
        """Partitions are created and deleted all the time, files cleaned, processes end."""
        dice = Random(seed)
        process, expected, used = Process(tmp_path), dict[int, bytes](), 0
        for _ in range(12):
            for _ in range(20):
                what = dice.random()
                if what < 0.15:
                    used += 1
                    expected[used] = append_to(process[used], dice.randrange(150, 900))
                elif what < 0.27 and expected:
                    drop(process, gone := dice.choice(list(expected)))
                    del expected[gone]
                elif expected:
                    number = dice.choice(list(expected))
                    expected[number] += append_to(process[number], dice.randrange(150, 900))
            if dice.random() < 0.5:
                clean(process)
            if dice.random() < 0.3:
                process.log.close()
            if dice.random() < 0.3:
                (tmp_path / "commitlog" / CATALOG).unlink(missing_ok=True)
            if dice.random() < 0.5:
                process = Process(tmp_path)
                process.log.open()
            assert {number: bytes_of(process[number]) for number in expected} == expected
            assert {slot.slot_id.partition for slot in process.log.slots} == set(expected)
        assert process.log._numbers.count < used


def test_a_partition_of_which_only_the_binding_is_durable_is_in_no_start(tmp_path: Path) -> None:
    append_to(Process(tmp_path)[0])
    with min(Process(tmp_path).paths(".clog")).open("r+b") as file:
        file.truncate(FILE_HEADER.size + HEAD_SIZE + BIND_PAYLOAD.size)
    for _ in range(2):
        log = Process(tmp_path).log
        log.open()
        assert log.slots == []
