"""The metadata quorum through trouble: no two leaders, nothing committed lost; a failure names the seed that plays it again."""

from __future__ import annotations

import time

import pytest

from tests.simulation.quorum.mistakes import MISTAKES, Plant
from tests.simulation.quorum.playing import play
from tests.support.seeds import seed_of

ALWAYS = 10
NEW_S = 10.0
HISTORIES = 150
"""Within so many a planted mistake is found; nearly all are within ten."""

SHOWN_BY = {
    "votes_that_are_forgotten": 165,
    "votes_that_leave_before_they_are_durable": 23,
    "logs_compared_by_offset_only": 378,
    "answers_to_older_questions": 524,
    "changes_before_the_one_before_is_committed": 30,
}
"""The history that showed a mistake when it was last looked for, where the first few do not: it is played first."""


def test_the_same_histories_as_ever() -> None:
    """Everything of checks.py holds after every event."""
    for seed in range(ALWAYS):
        assert (failure := play(seed)) is None, str(failure)


def test_new_histories() -> None:
    """Others each time; a failure names its seed, for `make sim-quorum SEED=...`."""
    first = seed_of()
    print(f"histories from seed {first}")
    end = time.monotonic() + NEW_S
    while time.monotonic() < end:
        assert (failure := play(first)) is None, str(failure)
        first += 1


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same histories every time."""
    plant(monkeypatch)
    assert any(play(seed) is not None for seed in (SHOWN_BY.get(plant.__name__, 0), *range(HISTORIES)))
