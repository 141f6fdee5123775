"""When the checkpoint files of a log directory are written (storage/directories/checkpoint_writer.py)."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from storage.directories.checkpoint_writer import CheckpointWriter
from storage.io.checkpoint_file import RECOVERY_POINTS, read_offsets
from storage.io.disk import Disk

HIGH, LOW = {("t", 0): 4}, {("t", 0): 0}


class Checkpoints:
    """The recovery points of a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = CheckpointWriter(Disk(), str(path), nullcontext())
        work = self.writer.update({RECOVERY_POINTS: HIGH})
        assert work is not None
        work()

    @property
    def on_disk(self) -> dict[tuple[str, int], int]:
        return read_offsets(Disk(), f"{self.path}/{RECOVERY_POINTS}")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def test_equal_offsets_are_written_again_if_the_work_before_has_not_run(checkpoints: Checkpoints) -> None:
    """A truncation that lowers offsets is dropped if its log is deleted; a new log of that name begins below them."""
    writer = checkpoints.writer
    dropped = writer.update({RECOVERY_POINTS: LOW}, may_be_dropped=True)
    work = writer.update({RECOVERY_POINTS: LOW})
    assert dropped is not None
    assert work is not None
    work()
    assert checkpoints.on_disk == LOW
    assert writer.update({RECOVERY_POINTS: LOW}) is None
    assert not writer.may_contain(("t", 0))


def test_work_that_may_be_dropped_and_runs_is_not_repeated(checkpoints: Checkpoints) -> None:
    writer = checkpoints.writer
    work = writer.update({RECOVERY_POINTS: LOW}, may_be_dropped=True)
    assert work is not None
    work()
    assert checkpoints.on_disk == LOW
    assert writer.update({RECOVERY_POINTS: LOW}) is None
