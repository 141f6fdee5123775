"""`make sim`: as many histories as there is time for, on two processes; or one again, from its seed."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

from tests.simulation.playing import Failure, play

PROCESSES = 2
AT_A_TIME = 25
MOST_FAILURES = 5
PROGRESS_S = 10.0


def main() -> int:
    """Play histories; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="make sim", description="Plays histories of the storage on a simulated disk.")
    parser.add_argument("--seconds", type=float, help="for so long")
    parser.add_argument("--histories", type=int, help="so many")
    parser.add_argument("--seed", type=int, help="of the first; alone: this one only, with all that it did")
    given = parser.parse_args()
    if given.seed is not None and given.seconds is None and given.histories is None:
        return _replay(given.seed)
    first = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "big")
    seconds = given.seconds if given.seconds is not None or given.histories is not None else 60.0
    print(f"histories from seed {first}", flush=True)
    return _play_all(first, seconds, given.histories)


def _replay(seed: int) -> int:
    failure = play(seed)
    print(failure or f"seed {seed}: everything holds")
    return 1 if failure else 0


def _play_all(first: int, seconds: float | None, histories: int | None) -> int:
    begun = told = time.monotonic()
    played = 0
    failures: list[Failure] = []
    chunks = _chunks(first, histories)
    with ProcessPoolExecutor(PROCESSES) as pool:
        running: set[Future[list[Failure]]] = set()
        is_over = False
        while True:
            while not is_over and len(running) < 2 * PROCESSES:
                chunk = next(chunks, None)
                if chunk is None:
                    is_over = True
                else:
                    running.add(pool.submit(_play_some, chunk))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                played += AT_A_TIME
                for failure in future.result():
                    failures.append(failure)
                    print(f"{failure.what}\n    make sim SEED={failure.seed}", flush=True)
            now = time.monotonic()
            is_over |= (seconds is not None and now - begun >= seconds) or len(failures) >= MOST_FAILURES
            if now - told >= PROGRESS_S:
                told = now
                print(f"{played} histories, {played / (now - begun):.0f} a second", flush=True)
    took = time.monotonic() - begun
    print(f"{played} histories in {took:.0f} s, {played / took:.0f} a second: {len(failures)} failed")
    return 1 if failures else 0


def _chunks(first: int, histories: int | None) -> Iterator[range]:
    for start in count(first, AT_A_TIME):
        if histories is not None and start >= first + histories:
            return
        end = start + AT_A_TIME if histories is None else min(start + AT_A_TIME, first + histories)
        yield range(start, end)


def _play_some(seeds: range) -> list[Failure]:
    gc.disable()  # it takes a fifth of the time
    failures = [failure for seed in seeds if (failure := play(seed)) is not None]
    gc.collect()
    return failures


if __name__ == "__main__":
    sys.exit(main())
