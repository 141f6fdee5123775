"""`make sim-quorum`: as many histories as there is time for, or one again, from its seed."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.quorum.playing import play


def main() -> int:
    """Play histories; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="make sim-quorum", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for so long")
    parser.add_argument("--seed", type=int, help="this one only")
    given = parser.parse_args()
    if given.seed is not None:
        failure = play(given.seed)
        print(failure or f"seed {given.seed}: everything holds")
        return 1 if failure else 0
    first = seed = int.from_bytes(os.urandom(4), "big")
    print(f"histories from seed {first}", flush=True)
    end = time.monotonic() + given.seconds
    failed = 0
    while time.monotonic() < end:
        failure = play(seed)
        if failure is not None:
            failed += 1
            print(f"{failure}\n    make sim-quorum SEED={seed}", flush=True)
        seed += 1
    print(f"{seed - first} histories: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
