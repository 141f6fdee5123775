"""Leader epochs (storage/log/leader_epoch_cache.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.primitives import Buffer
from storage.io.disk import Disk
from storage.log.leader_epoch_cache import LeaderEpochCache


def table(tmp_path: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    epochs = LeaderEpochCache(Disk(), f"{tmp_path}/leader-epoch-checkpoint")
    for entry in entries:
        epochs.assign(*entry)
    return epochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochCache:
    """Epoch 1 from offset 5 and epoch 3 from offset 20."""
    return table(tmp_path, (1, 5), (3, 20))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((4, 30), [(1, 0), (3, 20), (4, 30)]),
        ((3, 25), [(1, 0), (3, 20)]),
        ((3, 20), [(1, 0), (3, 20)]),
        ((3, 15), [(1, 0), (3, 15)]),
        ((4, 20), [(1, 0), (4, 20)]),
        ((4, 10), [(1, 0), (4, 10)]),
        ((2, 30), [(1, 0), (2, 30)]),
        ((9, 0), [(9, 0)]),
        ((1, 5), [(1, 5)]),
        ((-1, 50), [(1, 0), (3, 20)]),
    ],
)
def test_a_new_epoch_removes_contradicting_entries(
    tmp_path: Path, entry: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    epochs = table(tmp_path, (1, 0), (3, 20))
    epochs.assign(*entry)
    assert epochs.entries() == expected
    assert epochs.latest == expected[-1][0]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (0, (0, 5)),  # before all: as Kafka, the requested epoch and where the first one began
        (1, (1, 20)),
        (2, (1, 20)),
        (3, (3, 40)),
        (4, (3, 40)),
        (5, (5, 100)),
        (6, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_starts(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    assert table(tmp_path, (1, 5), (3, 20), (5, 40)).end_offset_for(epoch, 100) == expected


def test_an_empty_cache_returns_undefined(tmp_path: Path) -> None:
    epochs = table(tmp_path)
    assert (epochs.latest, epochs.epoch_at(7)) == (-1, -1)
    assert epochs.end_offset_for(0, 9) == (-1, -1)


def test_an_offset_belongs_to_the_last_epoch_started(epochs: LeaderEpochCache) -> None:
    assert [epochs.epoch_at(offset) for offset in (0, 5, 19, 20, 99)] == [-1, 1, 1, 3, 3]


@pytest.mark.parametrize(
    ("end", "expected"),
    [(100, [(1, 5), (3, 20)]), (21, [(1, 5), (3, 20)]), (20, [(1, 5)]), (6, [(1, 5)]), (5, []), (0, [])],
)
def test_truncate_removes_epochs_above_the_end(
    epochs: LeaderEpochCache, end: int, expected: list[tuple[int, int]]
) -> None:
    epochs.truncate(end)
    assert epochs.entries() == expected
    assert epochs.latest == (expected[-1][0] if expected else -1)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [(1, 5), (3, 20)]),
        (5, [(1, 5), (3, 20)]),
        (6, [(1, 6), (3, 20)]),
        (20, [(3, 20)]),
        (30, [(3, 30)]),
    ],
)
def test_trim_moves_the_first_epoch_to_the_log_start(
    epochs: LeaderEpochCache, start: int, expected: list[tuple[int, int]]
) -> None:
    epochs.trim(start)
    assert epochs.entries() == expected


def test_the_checkpoint_is_read_back(epochs: LeaderEpochCache, tmp_path: Path) -> None:
    epochs.write()
    file = tmp_path / "leader-epoch-checkpoint"
    assert file.read_bytes() == b"0\n2\n1 5\n3 20\n"
    file.unlink()
    epochs.write()
    assert epochs.take_write() is None
    assert not file.exists()
    epochs.assign(4, 30)
    epochs.write()
    assert table(tmp_path).entries() == [(1, 5), (3, 20), (4, 30)]


def test_a_temporary_file_is_renamed_when_it_is_durable(tmp_path: Path) -> None:
    epochs = table(tmp_path, (1, 5))
    epochs.write()
    epochs.assign(3, 20)
    epochs.write_temporary()
    assert table(tmp_path).entries() == [(1, 5)]
    epochs.commit_temporary()
    assert table(tmp_path).entries() == [(1, 5), (3, 20)]
    epochs.write_temporary()
    epochs.commit_temporary()
    assert [path.name for path in tmp_path.iterdir()] == ["leader-epoch-checkpoint"]


def test_taken_work_writes_the_entries_of_its_time(tmp_path: Path) -> None:
    epochs = table(tmp_path, (1, 5))
    work = epochs.take_write()
    epochs.assign(3, 20)
    assert work is not None
    work()
    assert table(tmp_path).entries() == [(1, 5)]
    assert epochs.take_write() is not None


def test_late_work_does_not_overwrite_a_later_replacement(tmp_path: Path) -> None:
    epochs = table(tmp_path, (1, 5))
    first = epochs.take_write()
    assert first is not None
    epochs.assign(3, 20)
    ((path, content),) = epochs.take_replacement()
    Path(path).write_bytes(content)
    first()
    assert table(tmp_path).entries() == [(1, 5), (3, 20)]


def test_concurrent_writes_are_repeated(tmp_path: Path) -> None:
    """The order of the two renames is unknown."""

    class Meanwhile(Disk):
        def replace_atomically(self, path: str, data: Buffer, **options: Any) -> None:
            cache.assign(3, 20)
            cache.take_replacement()
            super().replace_atomically(path, data, **options)

    epochs = cache = LeaderEpochCache(Meanwhile(), str(tmp_path / "leader-epoch-checkpoint"))
    epochs.assign(1, 5)
    work = epochs.take_write()
    assert work is not None
    work()
    assert epochs.take_replacement(), "the file on disk is older"


def test_contradicting_entries_are_removed_when_read(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n3\n1 5\n3 20\n2 30\n")
    epochs = table(tmp_path)
    assert epochs.entries() == [(1, 5), (2, 30)]
    assert epochs.take_write() is not None
