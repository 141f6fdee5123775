"""Long tests take turns (tests/support/turns.py)."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tests.support.turns import TURNS, Turns, day_of_the_run, turn_of

pytest_plugins = ["pytester"]

TESTS = "import pytest\n\n" + "".join(
    f"@pytest.mark.turn({number})\ndef test_{number}(): pass\n" for number in range(TURNS)
)
LONG = [f"test_{number}" for number in range(TURNS)]


def played(pytester: pytest.Pytester, turn: str, *words: str) -> set[str]:
    """The tests that a run plays."""
    folder = pytester.mkdir("tests")
    (folder / "test_long.py").write_text(TESTS)
    (folder / "test_short.py").write_text("def test_short(): pass\n")
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    result = pytester.inline_run(*(words or ("tests",)), plugins=[Turns(turn)])
    return {
        report.nodeid.rpartition("::")[2] for report in result.getreports() if report.when == "call" and report.passed
    }


def test_six_days_in_a_row_play_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1."""
    monkeypatch.delenv("TURN", raising=False)
    first = datetime(2026, 2, 5, tzinfo=UTC).toordinal()
    assert {turn_of(day) for day in range(first, first + TURNS)} == set(map(str, range(TURNS)))


def test_the_processes_of_a_run_have_the_day_on_which_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1: they are begun later, and midnight may lie between."""
    monkeypatch.delenv("DAY_OF_THE_RUN")
    before, day, after = datetime.now(UTC).toordinal(), day_of_the_run(), datetime.now(UTC).toordinal()
    assert before <= day <= after
    monkeypatch.setenv("DAY_OF_THE_RUN", str(day - 1))
    code = "from tests.support.turns import day_of_the_run; print(day_of_the_run())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) == day_of_the_run() == day - 1


def test_a_turn_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1."""
    monkeypatch.setenv("TURN", str(TURNS))
    with pytest.raises(pytest.UsageError, match="0 to 5 or all"):
        turn_of(day_of_the_run())


def test_a_run_plays_one_sixth_and_all_that_is_short(pytester: pytest.Pytester) -> None:
    """Rule 2."""
    assert played(pytester, "1") == {"test_1", "test_short"}


def test_all_are_played_when_asked_for(pytester: pytest.Pytester) -> None:
    """Rule 1."""
    assert played(pytester, "all") == {*LONG, "test_short"}


@pytest.mark.parametrize("words", [("tests/test_long.py",), ("tests", "-k", " or ".join(LONG))])
def test_what_is_named_is_played(pytester: pytest.Pytester, words: tuple[str, ...]) -> None:
    """Rule 2."""
    assert played(pytester, "1", *words) == set(LONG)
