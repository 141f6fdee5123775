"""The seeds of randomised tests. Each test prints its seed, so that a failure can be repeated.

RULES    1. A variable of the test, such as KILL_SEED, sets the seed.
         2. Otherwise SEED sets the seed of all tests. `.ci/run` derives it from the content of the commit: equal content
            gets equal seeds.
         3. Otherwise each run has a new seed.
"""

from __future__ import annotations

import argparse
import os
import random

from tests.support.storage_engine import use_engine_of


def seed_of(variable: str = "SEED") -> int:
    """The seed of a test with its own variable, or without."""
    output = os.environ.get(variable) or os.environ.get("SEED")
    return int(output) if output else random.randrange(2**32)


def run_options(description: str, **numbers: float) -> argparse.Namespace:
    """The options of a long run on the command line: these numbers with their defaults, and the seed, which is printed.

    The brokers of the run get the storage engine of the environment (storage_engine.py).
    """
    use_engine_of()
    parser = argparse.ArgumentParser(description=description)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    return options
