"""Tests of transactions by simulation: a broker is killed before each file operation, and at random ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.runner import check_new_seeds
from tests.simulation.transactions.simulator import run_simulation, simulate

NEW_SEEDS = 25


@pytest.mark.parametrize("has_version_2", [True, False], ids=["version 2", "version 0"])
def test_a_kill_before_any_file_operation_loses_nothing(tmp_path: Path, has_version_2: bool) -> None:
    """The same simulation without a kill, then with one kill at each file operation."""
    operations = run_simulation(tmp_path / "whole", 0, [], has_version_2=has_version_2).file_operations
    assert operations > 10
    for kill in range(operations):
        run_simulation(tmp_path / str(kill), 0, [kill], has_version_2=has_version_2)


def test_several_kills_lose_nothing() -> None:
    check_new_seeds(simulate, float("inf"), limit=NEW_SEEDS)
