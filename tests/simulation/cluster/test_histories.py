"""Clusters through trouble: nothing acknowledged is lost; a failure names the seed that plays it again."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.simulation.cluster.playing import play
from tests.support.seeds import seed_of

ALWAYS = 45
AT_A_TIME = 15
NEW_S = 10.0


@pytest.mark.parametrize("first", range(0, ALWAYS, AT_A_TIME))
def test_the_same_histories_as_ever(first: int) -> None:
    """Everything of checks.py holds after every event."""
    for seed in range(first, first + AT_A_TIME):
        assert (failure := play(seed)) is None, str(failure)


def test_new_histories() -> None:
    """Others each time; a failure names its seed, for `make sim-cluster SEED=...`."""
    first = seed_of()
    print(f"histories from seed {first}")
    end = time.monotonic() + NEW_S
    while time.monotonic() < end:
        assert (failure := play(first)) is None, str(failure)
        first += 1


def test_a_seed_is_a_history() -> None:
    """What fails once fails again, in another process too: nothing but the seed decides, no order of hashes either."""
    first, second = (story_in_a_process(hashing) for hashing in ("1", "2"))
    assert "peace" in first
    assert first == second


def story_in_a_process(hashing: str) -> str:
    """What is told of two histories, by a process of its own."""
    code = (
        "from tests.simulation.cluster.troubles import Troubles\n"
        "from tests.simulation.cluster.world import World\n"
        "for seed in (3, 4):\n"
        "    world = World(seed)\n"
        "    Troubles(world).play()\n"
        "    print(world.random.random(), *world.story, sep='\\n')\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hashing}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout
