"""The simulation of a cluster finds the mistakes for which it was made."""

from __future__ import annotations

import pytest

from tests.simulation.cluster.mistakes import MISTAKES, Plant
from tests.simulation.cluster.playing import play

HISTORIES = 60
SHOWN_BY = {
    "a_high_watermark_that_does_not_wait_for_who_joins": 28,
    "records_that_count_before_they_are_durable": 8,
    "a_cut_at_the_high_watermark": 1,
    "wishes_whose_epochs_nobody_compares": 91,
    "a_crash_that_changes_nothing": 1,
    "elections_that_are_unclean": 20,
    "a_controller_that_decides_on_what_is_committed_only": 1,
    "metadata_that_count_before_they_are_durable": 3,
    "snapshots_without_the_last_record": 2,
}
"""The history that showed a mistake when it was last looked for, where the first ones do not: it is played first."""


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within so many histories, always the same ones."""
    plant(monkeypatch)
    assert any(play(seed) is not None for seed in (SHOWN_BY.get(plant.__name__, 0), *range(HISTORIES)))
