"""Responses that wait for the controller no longer than the client.

NOT HERE The decisions (`replication/controller/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.handlers.router import RequestContext
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import ControllerClient
from replication.timer_queue import TimerQueue


def submit_with_timeout(
    controller: ControllerClient,
    timers: TimerQueue,
    context: RequestContext,
    request: Any,
    timeout_response: Callable[[], Message],
) -> Completion[Any]:
    """The controller's response, or `timeout_response` after the request's `timeout_ms`: 0 or less is none.

    After a timeout the request still takes effect.
    """
    response = controller.submit(request)
    if request.timeout_ms > 0:
        at_mono_ms = context.mono_ms + request.timeout_ms
        response.expire_at(timers, at_mono_ms, lambda: response.complete(timeout_response()))
    return response
