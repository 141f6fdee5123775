"""Responses that wait for a coordinator's commits or for the controller.

NOT HERE The commits (`coordinators/runtime/coordinator_runtime.py`), the decisions (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from broker.coordinators.runtime.coordinator_runtime import Commit, coordinator_error
from broker.handlers.router import RequestContext
from protocol.errors import ErrorCode
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import ControllerClient
from replication.timer_queue import TimerQueue

A = TypeVar("A", bound=Message)


def when_committed(commit: Commit, answer: Callable[[ErrorCode], A]) -> A | Completion[A]:
    """The response, now or after the commit completes."""
    if commit.error is not None:
        return answer(commit.error)
    pending: Completion[A] = Completion()
    commit.waiters.append(lambda error: pending.complete(answer(error)))
    return pending


def when_all(commits: Iterable[Commit], answer: Callable[[], A]) -> A | Completion[A]:
    """The response after all commits have completed, with or without an error."""
    incomplete = [commit for commit in commits if commit.error is None]
    if not incomplete:
        return answer()
    pending: Completion[A] = Completion()
    on_commit = countdown(len(incomplete), lambda: pending.complete(answer()))
    for commit in incomplete:
        commit.waiters.append(lambda _: on_commit())
    return pending


def countdown(count: int, then: Callable[[], None]) -> Callable[[], None]:
    """A function whose call number `count` calls `then`."""

    def count_down() -> None:
        nonlocal count
        count -= 1
        if not count:
            then()

    return count_down


def set_describe_error(described: Any, error: ErrorCode) -> None:
    """Replace the description of a group by the error of the last commit: what it describes may not be committed."""
    if error is not ErrorCode.NONE:
        described.error_code, described.members = coordinator_error(error), []


class ControllerTimeout(NamedTuple):
    """A client's timeout for the controller's response; 0 or less: none."""

    timers: TimerQueue
    timeout_ms: int
    response: Callable[[], Message]
    """Creates the response after the timeout."""


def submit(
    controller: ControllerClient,
    context: RequestContext,
    request: Message,
    timeout: ControllerTimeout | None = None,
) -> Completion[Any]:
    """The controller's response to a request. After a timeout the request still takes effect."""
    response = controller.submit(request, wall_ms=context.wall_ms)
    if timeout is not None and timeout.timeout_ms > 0:
        at_mono_ms = context.mono_ms + timeout.timeout_ms
        response.expire_at(timeout.timers, at_mono_ms, lambda: response.complete(timeout.response()))
    return response
