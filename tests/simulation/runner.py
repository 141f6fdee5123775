"""The runner that all simulators share: command line, repeated runs, fixed and new seeds in tests, planted bugs.

RULES    1. A simulation is a function of its seed. A failure names the command that repeats it.
         2. `--seed N` alone repeats one simulation and prints its event log. Otherwise simulations run in two processes until
            the time or the number is reached, or five failed.
         3. A planted bug is found if one of a fixed list of seeds fails with it. A TypeError is an error of the plant: the
            function that it replaces has got other parameters.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from inspect import isfunction
from itertools import count
from types import ModuleType
from typing import NamedTuple

from pytest import MonkeyPatch  # noqa: PT013

from tests.support.seeds import seed_of

PROCESSES = 2
CHUNK = 25
MAX_FAILURES = 5
PROGRESS_S = 10.0

PlantedBug = Callable[[MonkeyPatch], None]
"""Replaces a part of the product by a faulty one; its docstring says what is wrong."""


class Failure(NamedTuple):
    """A simulation in which an invariant does not hold."""

    rerun: str
    """The command that repeats it."""
    summary: str
    """One line."""
    event_log: str = ""

    def __str__(self) -> str:
        return f"{self.event_log}\n{self.summary}\nThe same again: {self.rerun}".lstrip()


Simulate = Callable[[int], Failure | None]
"""Runs the simulation of a seed; None if all invariants hold."""


@contextmanager
def log_level(level: int) -> Iterator[None]:
    """Log less of the product: simulated faults cause warnings."""
    log = logging.getLogger("barnabas")
    before, log.level = log.level, level
    try:
        yield
    finally:
        log.level = before


# ---- tests ---------------------------------------------------------------------------------------------------


def check_seeds(simulate: Simulate, seeds: Iterable[int]) -> None:
    """Run the simulations of fixed seeds.

    Raises:
        AssertionError: one failed.
    """
    for seed in seeds:
        failure = simulate(seed)
        assert failure is None, str(failure)


def check_new_seeds(simulate: Simulate, seconds: float, *, limit: int = 1_000_000) -> None:
    """Run simulations of new seeds for some seconds.

    Raises:
        AssertionError: one failed.
    """
    first = seed_of()
    print(f"histories from seed {first}")
    end = time.monotonic() + seconds
    for seed in range(first, first + limit):
        check_seeds(simulate, [seed])
        if time.monotonic() > end:
            return


def bugs_in(module: ModuleType) -> list[PlantedBug]:
    """The planted bugs of a module: all functions that it defines, except private ones."""
    own = [found for found in vars(module).values() if isfunction(found) and found.__module__ == module.__name__]
    return [bug for bug in own if not bug.__name__.startswith("_")]


def finds(simulate: Simulate, seeds: Iterable[int]) -> bool:
    """Whether one of the seeds fails (rule 3)."""
    failure = next(filter(None, map(simulate, seeds)), None)
    assert failure is None or "TypeError" not in failure.summary, (
        f"the planted function has wrong parameters: {failure}"
    )
    return failure is not None


# ---- command line --------------------------------------------------------------------------------------------


def run(parser: argparse.ArgumentParser, simulation_of: Callable[[str], Simulate]) -> int:
    """Run simulations of the parser's `part` as the further arguments say; 1 if one failed."""
    parser.add_argument("--seconds", type=float, help="run for this time (default: 60)")
    parser.add_argument("--histories", type=int, help="run this number of simulations")
    parser.add_argument(
        "--seed", type=int, help="the first seed; alone: repeat this simulation and print its event log"
    )
    options = parser.parse_args()
    simulate = simulation_of(options.part)
    if options.seed is not None and options.seconds is None and options.histories is None:
        failure = simulate(options.seed)
        print(failure or f"seed {options.seed}: everything holds")
        return 1 if failure else 0
    first = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    seconds = options.seconds if options.seconds is not None or options.histories is not None else 60.0
    print(f"histories from seed {first}", flush=True)
    return _run_all(simulate, first, seconds, options.histories)


def _run_all(simulate: Simulate, first: int, seconds: float | None, histories: int | None) -> int:
    started = last_report = time.monotonic()
    end = None if seconds is None else started + seconds
    completed = 0
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
                    running.add(pool.submit(partial(_run_chunk, simulate, chunk, end)))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number, failed = future.result()
                completed += number
                for failure in failed:
                    failures.append(failure)
                    print(f"{failure.summary}\n    {failure.rerun}", flush=True)
            now = time.monotonic()
            is_over |= (end is not None and now >= end) or len(failures) >= MAX_FAILURES
            if now - last_report >= PROGRESS_S:
                last_report = now
                print(f"{completed} histories, {completed / (now - started):.0f} a second", flush=True)
    elapsed = time.monotonic() - started
    print(f"{completed} histories in {elapsed:.0f} s, {completed / elapsed:.1f} a second: {len(failures)} failed")
    return 1 if failures else 0


def _chunks(first: int, histories: int | None) -> Iterator[range]:
    for start in count(first, CHUNK):
        if histories is not None and start >= first + histories:
            return
        end = start + CHUNK if histories is None else min(start + CHUNK, first + histories)
        yield range(start, end)


def _run_chunk(simulate: Simulate, seeds: range, end: float | None) -> tuple[int, list[Failure]]:
    """The number of simulations that ran before the end, and the failures among them."""
    failures: list[Failure] = []
    completed = 0
    gc.disable()  # garbage collection would take a fifth of the time
    for seed in seeds:
        if end is not None and time.monotonic() >= end:
            break
        completed += 1
        failure = simulate(seed)
        if failure is not None:
            failures.append(failure)
    gc.enable()
    gc.collect()
    return completed, failures
