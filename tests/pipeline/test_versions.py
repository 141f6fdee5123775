"""A folder that changes as a whole: every step of a commit may be the last one before a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.versions import OWN, Versions


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    (tmp_path / "result" / OWN).mkdir(parents=True)
    return Versions(tmp_path / "result", "result")


def put(versions: Versions, number: int) -> None:
    """Commit a version with a file that goes on and one of its own."""
    staged = versions.stage()
    (staged / "rows").mkdir()
    if number > 1:
        os.link(versions.path(number - 1) / "rows" / "kept", staged / "rows" / "kept")
    else:
        (staged / "rows" / "kept").write_text("kept")
    (staged / "rows" / f"of-{number}").write_text(str(number))
    versions.commit(staged, number, {"version": number})


def seen(versions: Versions) -> set[str]:
    """What a reader finds."""
    return {path.name for path in (versions.folder / "current" / "rows").glob("*")}


def kill_before(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """End the process before its change of the disk with this number."""
    counted = 0

    def counting(really: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal counted
            counted += 1
            if counted == last:
                raise Killed
            return really(*args, **kwargs)

        return step

    for name in ("rename", "replace", "unlink", "symlink_to", "mkdir"):
        monkeypatch.setattr(Path, name, counting(getattr(Path, name)))
    for name in ("fsync", "link", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))


@pytest.mark.parametrize("last", range(1, 30))
def test_a_version_that_is_cut_anywhere_counts_whole_or_not_at_all(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """versions.py rules 1 to 3: killed before any change of the disk, a reader sees one version or the other."""
    for number in (1, 2):
        put(versions, number)
    with monkeypatch.context() as patched:
        kill_before(patched, last)
        try:
            put(versions, 3)
        except Killed:
            pass
        else:
            assert last > 20, "a commit has more steps than that"
    state = versions.state()
    assert state is not None
    number = state["version"]
    assert number in {2, 3}
    assert seen(versions) in ({"kept", "of-2"}, {"kept", f"of-{number}"}), (
        "the link follows the state, never the other way"
    )
    versions.settle()
    assert seen(versions) == {"kept", f"of-{number}"}
    assert not (versions.folder / OWN / "staging").exists()
    put(versions, number + 1)
    assert seen(versions) == {"kept", f"of-{number + 1}"}
    assert sorted(path.name for path in (versions.folder / "versions").iterdir()) == [
        versions.path(number).name,
        versions.path(number + 1).name,
    ]


def test_what_a_left_worker_still_writes_is_in_no_version(versions: Versions) -> None:
    """versions.py rule 2."""
    left = versions.stage()
    versions.settle()
    left.mkdir(parents=True)
    (left / "late").write_text("late")
    put(versions, 1)
    assert seen(versions) == {"kept", "of-1"}


def test_a_folder_has_one_purpose_and_a_state_that_can_be_read(versions: Versions) -> None:
    """versions.py: strangers are refused, and so is what none of ours has written."""
    assert versions.state() is None
    stranger = versions.folder / "letter.txt"
    stranger.write_text("dear")
    with pytest.raises(JobError, match=r"is no result and not empty \(letter.txt\)"):
        versions.state()
    stranger.unlink()
    put(versions, 1)
    assert versions.state() == {"version": 1}
    versions.state_file.write_text('{"ver')
    with pytest.raises(JobError, match="is damaged"):
        versions.state()
