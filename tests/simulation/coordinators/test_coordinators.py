"""Tests of the coordinators by simulation: fixed seeds, new seeds, planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.coordinators import planted_bugs
from tests.simulation.coordinators.simulator import simulate
from tests.simulation.runner import PlantedBug, bugs_in, check_new_seeds, check_seeds, finds

FIXED_SEEDS = 12
NEW_S = 2.0
SEEDS_PER_BUG = 100
"""Nearly all planted bugs are found within ten."""


def test_the_invariants_hold_for_fixed_seeds() -> None:
    check_seeds(simulate, range(FIXED_SEEDS))


@pytest.mark.long
def test_the_invariants_hold_for_new_seeds() -> None:
    check_new_seeds(simulate, NEW_S)


@pytest.mark.long
@pytest.mark.parametrize("plant", bugs_in(planted_bugs), ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(simulate, range(SEEDS_PER_BUG))
