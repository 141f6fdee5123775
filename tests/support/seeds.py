"""The seeds of tests that choose at random. Each test prints its own, so that what failed can be played again.

RULES    1. A variable of the test's own, such as KILL_SEED, says it.
         2. Else SEED says that of all tests. `.ci/run` takes it from the content of the commit: the same content is always
            judged by the same choices, another one by others.
         3. Else it is a new one in each run.
"""

from __future__ import annotations

import os
import random


def seed_of(variable: str = "SEED") -> int:
    """The seed of tests that have a variable of their own, or of others."""
    said = os.environ.get(variable) or os.environ.get("SEED")
    return int(said) if said else random.randrange(2**32)
