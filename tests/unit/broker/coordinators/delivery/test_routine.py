"""Steps that wait for completions (broker/coordinators/delivery/routine.py)."""

from __future__ import annotations

import pytest

from broker.coordinators.delivery.routine import Routine, Steps
from protocol.errors import ErrorCode, KafkaError
from replication.completion import Completion, completed


def test_values_and_errors_arrive_where_the_steps_wait() -> None:
    waiting: list[Completion[int]] = [Completion(), Completion()]
    seen: list[object] = []

    def steps() -> Steps[None]:
        seen.append((yield completed(1)))
        seen.append((yield waiting[0]))
        try:
            yield waiting[1]
        except KafkaError as error:
            seen.append(error.code)

    Routine(steps()).start()
    assert seen == [1]
    waiting[0].complete(2)
    waiting[1].fail(KafkaError(ErrorCode.NETWORK_EXCEPTION))
    assert seen == [1, 2, ErrorCode.NETWORK_EXCEPTION]


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_stopped_routine_never_continues(by_itself: bool) -> None:
    waiting: Completion[None] = Completion()
    seen: list[str] = []

    def steps() -> Steps[None]:
        if by_itself:
            routine.stop()
        yield waiting
        seen.append("continued")

    routine = Routine(steps())
    routine.start()
    if not by_itself:
        routine.stop()
    waiting.complete(None)
    assert seen == []
