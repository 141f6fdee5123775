"""Lives from seeds: `python -m tests.simulation.transactions.playing --lives 1000`, or one again with `--seed N --lives 1`."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from pathlib import Path
from random import Random

from tests.simulation.transactions.lives import Life
from tests.simulation.transactions.producer import Refused

MOST_KILLS = 4
CHANGES = 40
"""About so many changes of files are in a life."""


def play(path: Path, seed: int, kills: list[int], *, has_version_2: bool) -> Life:
    """One life; what went wrong names its seed."""
    life = Life(path, Random(seed), kills, has_version_2=has_version_2)
    try:
        life.run()
    except (AssertionError, Refused) as error:
        error.add_note(f"seed {seed}, kills {kills}, version {2 if has_version_2 else 0}")
        raise
    return life


def random_life(path: Path, seed: int) -> None:
    """One life, with several kills anywhere."""
    dice = Random(seed)
    kills = [dice.randrange(CHANGES) for _ in range(dice.randint(1, MOST_KILLS))]
    play(path, seed, kills, has_version_2=bool(seed % 2))


def main() -> None:
    """Play so many lives."""
    parser = argparse.ArgumentParser(description="Transactions whose broker is killed anywhere.")
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    print(f"lives from seed {options.seed}", flush=True)
    logging.getLogger("barnabas").setLevel(logging.CRITICAL)  # recoveries warn of what they find
    for seed in range(options.seed, options.seed + options.lives):
        with tempfile.TemporaryDirectory() as folder:
            random_life(Path(folder), seed)
    print(f"{options.lives} lives: everything holds")


if __name__ == "__main__":
    main()
