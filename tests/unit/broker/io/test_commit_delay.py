"""When a round of a group commit waits (broker/io/commit_delay.py)."""

from __future__ import annotations

import pytest

from broker.io.commit_delay import MAX_SKIPPED, MIN_ROUND_S, CommitDelay
from storage.io.aio_fsync import CAPACITY

ROUND_S = 0.002


def rounds_until_the_next_wait(delay: CommitDelay) -> int:
    """The number of rounds that start at once."""
    count = 0
    while not delay.expected(3, 2, ROUND_S):
        count += 1
    return count


def test_a_round_waits_for_as_many_flushes_as_two_rounds_would_have() -> None:
    assert CommitDelay().expected(3, 2, ROUND_S) == 5
    assert CommitDelay().expected(2, 0, ROUND_S) == 2


@pytest.mark.parametrize(
    ("completed", "pending", "round_s"), [(1, 0, ROUND_S), (1, CAPACITY, ROUND_S), (3, 2, MIN_ROUND_S / 2)]
)
def test_one_client_a_full_round_and_a_fast_disk_do_not_wait(completed: int, pending: int, round_s: float) -> None:
    assert CommitDelay().expected(completed, pending, round_s) == 0


def test_after_a_wait_that_paid_the_next_round_waits_too() -> None:
    delay = CommitDelay()
    delay.expected(3, 2, ROUND_S)
    delay.ended(ROUND_S / 2, is_complete=True)
    assert rounds_until_the_next_wait(delay) == 0


@pytest.mark.parametrize(("waited_s", "is_complete"), [(ROUND_S * 0.7, True), (ROUND_S / 2, False)])
def test_waits_that_are_too_long_or_in_vain_become_rare(waited_s: float, *, is_complete: bool) -> None:
    """The limit for 3 completed and 2 pending flushes is 0.6 rounds."""
    delay = CommitDelay()
    skipped = []
    for _ in range(8):
        skipped.append(rounds_until_the_next_wait(delay))
        delay.ended(waited_s, is_complete=is_complete)
    assert skipped == [0, 2, 4, 8, 16, 32, MAX_SKIPPED, MAX_SKIPPED]
    rounds_until_the_next_wait(delay)
    delay.ended(0.0, is_complete=True)
    assert rounds_until_the_next_wait(delay) == 0
