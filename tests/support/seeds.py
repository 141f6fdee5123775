"""The seeds of randomised tests. Each test prints its seed, so that a failure can be repeated.

RULES    1. A variable of the test, such as KILL_SEED, sets the seed.
         2. Otherwise SEED sets the seed of all tests. `.ci/run` derives it from the content of the commit: equal content
            gets equal seeds.
         3. Otherwise each run has a new seed.
"""

from __future__ import annotations

import os
import random


def seed_of(variable: str = "SEED") -> int:
    """The seed of a test with its own variable, or without."""
    output = os.environ.get(variable) or os.environ.get("SEED")
    return int(output) if output else random.randrange(2**32)
