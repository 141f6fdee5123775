"""Playing a simulation from the command line: as many histories as there is time for, on two processes; or one again.

NOT HERE What a history is: whoever calls `run` brings a `play` that takes a seed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count
from typing import NamedTuple

PROCESSES = 2
AT_A_TIME = 25
MOST_FAILURES = 5
PROGRESS_S = 10.0


class Failure(NamedTuple):
    """A history in which something does not hold."""

    target: str
    """Of make, which plays it again."""
    seed: int
    what: str
    """In one line."""
    story: str = ""
    """What was done, and where it ended."""

    @property
    def again(self) -> str:
        """The command that plays it again."""
        return f"make {self.target} SEED={self.seed}"

    def __str__(self) -> str:
        return f"{self.story}\n{self.what}\nThe same again: {self.again}".lstrip()


Play = Callable[[int], Failure | None]


def run(target: str, description: str, play: Play) -> None:
    """Play histories as the arguments say, and end; with 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog=f"make {target}", description=description)
    parser.add_argument("--seconds", type=float, help="for so long")
    parser.add_argument("--histories", type=int, help="so many")
    parser.add_argument("--seed", type=int, help="of the first; alone: this one only, with all that it did")
    given = parser.parse_args()
    if given.seed is not None and given.seconds is None and given.histories is None:
        sys.exit(_replay(given.seed, play))
    first = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "big")
    seconds = given.seconds if given.seconds is not None or given.histories is not None else 60.0
    print(f"histories from seed {first}", flush=True)
    sys.exit(_play_all(play, first, seconds, given.histories))


def _replay(seed: int, play: Play) -> int:
    failure = play(seed)
    print(failure or f"seed {seed}: everything holds")
    return 1 if failure else 0


def _play_all(play: Play, first: int, seconds: float | None, histories: int | None) -> int:
    begun = told = time.monotonic()
    end = None if seconds is None else begun + seconds
    played = 0
    failures: list[Failure] = []
    chunks = _chunks(first, histories)
    with ProcessPoolExecutor(PROCESSES) as pool:
        running: set[Future[tuple[int, list[Failure]]]] = set()
        is_over = False
        while True:
            while not is_over and len(running) < 2 * PROCESSES:
                chunk = next(chunks, None)
                if chunk is None:
                    is_over = True
                else:
                    running.add(pool.submit(partial(_play_some, play, chunk, end)))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                some, failed = future.result()
                played += some
                for failure in failed:
                    failures.append(failure)
                    print(f"{failure.what}\n    {failure.again}", flush=True)
            now = time.monotonic()
            is_over |= (end is not None and now >= end) or len(failures) >= MOST_FAILURES
            if now - told >= PROGRESS_S:
                told = now
                print(f"{played} histories, {played / (now - begun):.0f} a second", flush=True)
    took = time.monotonic() - begun
    print(f"{played} histories in {took:.0f} s, {played / took:.1f} a second: {len(failures)} failed")
    return 1 if failures else 0


def _chunks(first: int, histories: int | None) -> Iterator[range]:
    for start in count(first, AT_A_TIME):
        if histories is not None and start >= first + histories:
            return
        end = start + AT_A_TIME if histories is None else min(start + AT_A_TIME, first + histories)
        yield range(start, end)


def _play_some(play: Play, seeds: range, end: float | None) -> tuple[int, list[Failure]]:
    """How many were played before the time was over, and which failed."""
    failures: list[Failure] = []
    played = 0
    gc.disable()  # it takes a fifth of the time
    for seed in seeds:
        if end is not None and time.monotonic() >= end:
            break
        played += 1
        failure = play(seed)
        if failure is not None:
            failures.append(failure)
    gc.enable()
    gc.collect()
    return played, failures
