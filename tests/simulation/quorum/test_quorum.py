"""The metadata quorum through trouble: no two leaders, nothing committed lost; the seed of a failure plays it again.

`QUORUM_SEED=17 make test ARGS="tests/simulation/quorum"` plays one history again; QUORUM_HISTORIES says how many are played.
"""

from __future__ import annotations

import os
import random

from tests.simulation.quorum.world import World

HISTORIES = int(os.environ.get("QUORUM_HISTORIES", "40"))


def test_no_history_of_a_quorum_loses_what_was_committed() -> None:
    """Rules 1 to 7 of `checks.py`."""
    given = os.environ.get("QUORUM_SEED")
    first = random.SystemRandom().randrange(1 << 32)
    for seed in [int(given)] if given else range(first, first + HISTORIES):
        try:
            World(seed).play()
        except BaseException:
            print(f"QUORUM_SEED={seed}")
            raise
