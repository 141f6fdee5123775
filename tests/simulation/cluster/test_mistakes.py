"""The simulation of a cluster finds the mistakes for which it was made."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.mistakes import MISTAKES, Plant
from tests.simulation.cluster.playing import play

HISTORIES = 60
SHOWN_BY = {
    "elections_that_are_unclean": 11,
    "a_high_watermark_that_does_not_wait_for_who_joins": 3,
    "fetches_that_nobody_compares": 3,
    "a_crash_that_changes_nothing": 2,
}
"""The history that showed a mistake when it was last looked for, where the first ones do not: it is played first."""


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within so many histories, always the same ones."""
    plant(monkeypatch)
    assert any(play(seed) is not None for seed in (SHOWN_BY.get(plant.__name__, 0), *range(HISTORIES)))
