"""A transactional id lives through kills of its broker between any two changes of its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.transactions.playing import play, random_life

SEEDS = range(1)
NEW = 25


@pytest.mark.parametrize("has_version_2", [True, False], ids=["version 2", "version 0"])
def test_a_kill_between_any_two_changes_of_files(tmp_path: Path, has_version_2: bool) -> None:
    """Issue 6, part 5: the same life, killed once, at each of its changes in turn."""
    for seed in SEEDS:
        changes = play(tmp_path / f"{seed}-whole", seed, [], has_version_2=has_version_2).changes
        assert changes > 10
        for kill in range(changes):
            play(tmp_path / f"{seed}-{kill}", seed, [kill], has_version_2=has_version_2)


def test_lives_that_are_new_every_time(tmp_path: Path) -> None:
    """Several kills, anywhere."""
    first = int.from_bytes(os.urandom(4), "big")
    print(f"lives from seed {first}")
    for seed in range(first, first + NEW):
        random_life(tmp_path / str(seed), seed)
