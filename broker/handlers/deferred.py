"""Responses that wait for the controller.

NOT HERE The decisions (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from broker.handlers.router import RequestContext
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import ControllerClient
from replication.timer_queue import TimerQueue


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
    response = controller.submit(request)
    if timeout is not None and timeout.timeout_ms > 0:
        at_mono_ms = context.mono_ms + timeout.timeout_ms
        response.expire_at(timeout.timers, at_mono_ms, lambda: response.complete(timeout.response()))
    return response
