"""Answers that wait for the log: a Pending that completes when a coordinator's commits are reported.

NOT HERE What is committed (`coordinators/runtime/coordinator_runtime.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.coordinators.runtime.coordinator_runtime import Commit
from broker.handlers.router import Pending
from protocol.errors import ErrorCode
from protocol.schema import Message

A = TypeVar("A", bound=Message)


def when_committed(commit: Commit, answer: Callable[[ErrorCode], A]) -> A | Pending:
    """The answer, now or when the log has reported."""
    if commit.error is not None:
        return answer(commit.error)
    pending = Pending()
    commit.waiters.append(lambda error: pending.complete(answer(error)))
    return pending


def when_all(commits: Iterable[Commit], answer: Callable[[], A]) -> A | Pending:
    """The answer when the log has reported on all commits, whatever it said."""
    is_open = [commit for commit in commits if commit.error is None]
    if not is_open:
        return answer()
    pending = Pending()
    left = len(is_open)

    def one_more(_: ErrorCode) -> None:
        nonlocal left
        left -= 1
        if not left:
            pending.complete(answer())

    for commit in is_open:
        commit.waiters.append(one_more)
    return pending
