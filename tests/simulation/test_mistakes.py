"""The simulation finds the mistakes for which it was made."""

from __future__ import annotations

import pytest

from tests.simulation.mistakes import MISTAKES, OF_COMPACTION, Plant
from tests.simulation.playing import play

HISTORIES = 2000


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within so many histories, always the same ones."""
    plant(monkeypatch)
    is_compacting = plant in OF_COMPACTION
    assert any(play(seed, is_compacting=is_compacting) is not None for seed in range(HISTORIES))
