"""Lives of groups and transactions: with every beginning of their records a coordinator knows what the one before knew."""

from __future__ import annotations

import time

import pytest

from tests.simulation.coordinators.history import play
from tests.simulation.coordinators.mistakes import MISTAKES, Plant
from tests.support.seeds import seed_of

ALWAYS = 12
NEW_S = 2.0
HISTORIES = 100
"""Within so many a planted mistake is found; nearly all are within ten."""


def test_the_same_histories_as_ever() -> None:
    """Everything of boundaries.py holds at every boundary."""
    for seed in range(ALWAYS):
        assert (failure := play(seed)) is None, str(failure)


def test_new_histories() -> None:
    """Others each time; a failure names its seed, for `make sim-coordinators SEED=...`."""
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
    assert any(play(seed) is not None for seed in range(HISTORIES))
