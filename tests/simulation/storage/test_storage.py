"""Tests of the storage engine by simulation: fixed seeds, new seeds, seeds that hypothesis shrinks, planted bugs."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.runner import PlantedBug, check_new_seeds, check_seeds, finds
from tests.simulation.storage.planted_bugs import COMPACTION_BUGS, PLANTED_BUGS
from tests.simulation.storage.simulator import Simulation, simulate

FIXED_SEEDS = 400
CHUNK = 100
NEW_SEEDS = 1500
NEW_S = 10.0
SEEDS_PER_BUG = 2000


@pytest.mark.parametrize("first", range(0, FIXED_SEEDS, CHUNK))
def test_the_invariants_hold_for_fixed_seeds(first: int) -> None:
    check_seeds(simulate, range(first, first + CHUNK))


@pytest.mark.long
def test_the_invariants_hold_for_new_seeds() -> None:
    check_new_seeds(simulate, NEW_S, limit=NEW_SEEDS)


@settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_the_invariants_hold_for_short_simulations_that_hypothesis_can_shrink(random: Random) -> None:
    simulation = Simulation(random, steps=20)
    try:
        simulation.run()
    except AssertionError as error:
        error.add_note(f"after {simulation.trace}")
        raise


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTED_BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(partial(simulate, is_compacting=plant.__name__ in COMPACTION_BUGS), range(SEEDS_PER_BUG))
