"""Tests of the metadata quorum by simulation: fixed seeds, new seeds, planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.quorum import planted_bugs
from tests.simulation.quorum.simulator import simulate
from tests.simulation.runner import PlantedBug, bugs_in, check_new_seeds, check_seeds, finds

FIXED_SEEDS = 10
NEW_S = 10.0
SEEDS_PER_BUG = 150
"""Nearly all planted bugs are found within ten."""

FIRST_SEED = {
    "votes_are_not_persisted": 165,
    "votes_are_sent_before_they_are_durable": 23,
    "logs_are_compared_by_offset_only": 378,
    "responses_to_earlier_requests_are_accepted": 524,
    "voter_changes_overlap": 30,
}
"""A seed that finds a bug which the first seeds do not find; it runs first."""


def test_the_invariants_hold_for_fixed_seeds() -> None:
    check_seeds(simulate, range(FIXED_SEEDS))


@pytest.mark.long
def test_the_invariants_hold_for_new_seeds() -> None:
    check_new_seeds(simulate, NEW_S)


@pytest.mark.long
@pytest.mark.parametrize("plant", bugs_in(planted_bugs), ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(simulate, (FIRST_SEED.get(plant.__name__, 0), *range(SEEDS_PER_BUG)))
