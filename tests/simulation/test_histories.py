"""Histories of the storage on a simulated disk: some that are always the same, some that are new every time."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.history import History
from tests.simulation.playing import play
from tests.support.seeds import seed_of

ALWAYS = 400
AT_A_TIME = 100
NEW = 1500
NEW_S = 10.0


@pytest.mark.parametrize("first", range(0, ALWAYS, AT_A_TIME))
def test_the_same_histories_as_ever(first: int) -> None:
    """Everything of checks.py holds, at every step."""
    for seed in range(first, first + AT_A_TIME):
        failure = play(seed)
        assert failure is None, str(failure)


def test_new_histories() -> None:
    """Others each time, for as long as a test may take; a failure names the one command that shows it again."""
    first = seed_of()
    print(f"histories from seed {first}")
    end = time.monotonic() + NEW_S
    for seed in range(first, first + NEW):
        failure = play(seed)
        assert failure is None, str(failure)
        if time.monotonic() > end:
            break


@settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_histories_that_can_be_made_smaller(dice: Random) -> None:
    """The same rules, and what fails is told in its smallest form."""
    history = History(dice, steps=20)
    try:
        history.run()
    except AssertionError as error:
        error.add_note(f"after {history.trace}")
        raise
