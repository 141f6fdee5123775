"""A versioned folder, with a crash at every step of a commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.store.versions import INTERNAL, Versions
from tests.pipeline.crashes import Crash, crash
from tests.pipeline.killing.kill_at_step import end_before_change


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    (tmp_path / "result" / INTERNAL).mkdir(parents=True)
    return Versions(tmp_path / "result", "result")


def commit_version(versions: Versions, number: int) -> None:
    """Commits a version with a carried-over file and a new one."""
    staged = versions.stage()
    (staged / "rows").mkdir()
    if number > 1:
        os.link(versions.path(number - 1) / "rows" / "kept", staged / "rows" / "kept")
    else:
        (staged / "rows" / "kept").write_text("kept")
    (staged / "rows" / f"of-{number}").write_text(str(number))
    versions.commit(staged, number, {"version": number})


def current_files(versions: Versions) -> set[str]:
    return {path.name for path in (versions.folder / "current" / "rows").glob("*")}


@pytest.mark.parametrize("last", range(1, 30))
def test_a_version_interrupted_at_any_step_is_current_or_not_at_all(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    for number in (1, 2):
        commit_version(versions, number)
    with monkeypatch.context() as patched:
        end_before_change(last, str(versions.folder), crash, patched.setattr)
        try:
            commit_version(versions, 3)
        except Crash:
            pass
        else:
            assert last > 20, "a commit has more steps than that"
    state: dict[str, int] | None = versions.state(dict)
    assert state is not None
    number = state["version"]
    assert number in {2, 3}
    assert current_files(versions) in ({"kept", "of-2"}, {"kept", f"of-{number}"}), (
        "the link is updated after the state"
    )
    versions.clean_up()
    assert current_files(versions) == {"kept", f"of-{number}"}
    assert not (versions.folder / INTERNAL / "staging").exists()
    commit_version(versions, number + 1)
    assert current_files(versions) == {"kept", f"of-{number + 1}"}
    assert sorted(path.name for path in (versions.folder / "versions").iterdir()) == [
        versions.path(number).name,
        versions.path(number + 1).name,
    ]


def test_late_writes_of_a_worker_reach_no_version(versions: Versions) -> None:
    left = versions.stage()
    versions.clean_up()
    left.mkdir(parents=True)
    (left / "late").write_text("late")
    commit_version(versions, 1)
    assert current_files(versions) == {"kept", "of-1"}


def test_foreign_files_and_a_damaged_state_are_errors(versions: Versions) -> None:
    assert versions.state(dict) is None
    foreign_file = versions.folder / "letter.txt"
    foreign_file.write_text("dear")
    with pytest.raises(JobError, match=r"is not a result and not empty \(letter.txt\)"):
        versions.state(dict)
    foreign_file.unlink()
    commit_version(versions, 1)
    assert versions.state(dict) == {"version": 1}
    versions.state_file.write_text('{"ver')
    with pytest.raises(JobError, match="is damaged"):
        versions.state(dict)
    versions.state_file.write_text('{"version": "one"}')
    with pytest.raises(JobError, match="is damaged: version is 'one'"):
        versions.clean_up()
