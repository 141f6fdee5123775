"""Completion: one result, now or later (replication/completion.py)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from weakref import ref

import pytest

from protocol.errors import ErrorCode, KafkaError
from replication.completion import Completion, all_done, completed, failed, gather
from replication.timer_queue import TimerQueue


def results(completion: Completion[int]) -> list[int | Exception]:
    """Collects what callbacks receive."""
    found: list[int | Exception] = []
    completion.then(lambda done: found.append(done.value if done.error is None else done.error))
    return found


@pytest.mark.parametrize("is_early", [True, False], ids=["result before then", "result after then"])
def test_a_callback_gets_the_result_whether_it_comes_before_or_after(is_early: bool) -> None:
    completion: Completion[int] = Completion()
    found = [] if is_early else results(completion)
    completion.complete(7)
    found = results(completion) if is_early else found
    assert found == [7]
    assert completion.result() == 7


def test_only_the_first_result_counts() -> None:
    completion: Completion[int] = Completion()
    found = results(completion)
    error = ValueError()
    completion.fail(error)
    completion.complete(7)
    assert found == [error]
    with pytest.raises(ValueError):
        completion.result()


def test_callbacks_run_in_the_order_of_registration() -> None:
    completion: Completion[int] = Completion()
    order: list[str] = []
    completion.then(lambda _: order.append("first"))
    completion.then(lambda _: order.append("second"))
    completion.complete(0)
    assert order == ["first", "second"]


def test_a_cancelled_completion_calls_on_cancel_once_and_no_callback() -> None:
    cancelled: list[str] = []
    completion: Completion[int] = Completion(lambda: cancelled.append("once"))
    found = results(completion)
    completion.cancel()
    completion.cancel()
    completion.complete(7)
    assert cancelled == ["once"]
    assert found == results(completion) == []
    assert completion.is_done


def test_a_result_makes_cancel_a_no_op() -> None:
    cancelled: list[str] = []
    completion: Completion[int] = Completion(lambda: cancelled.append("once"))
    completion.complete(7)
    completion.cancel()
    assert not cancelled
    assert completion.result() == 7


def test_a_deadline_runs_only_without_a_result() -> None:
    timers = TimerQueue()
    late: Completion[int] = Completion()
    early: Completion[int] = Completion()
    dropped: Completion[int] = Completion()
    for completion in (late, early, dropped):
        completion.expire_at(timers, 100, lambda completion=completion: completion.complete(-1))  # type: ignore[misc]
    early.complete(7)
    dropped.cancel()
    assert len(timers) == 1
    timers.run_due(100)
    assert (late.result(), early.result()) == (-1, 7)


def test_map_passes_values_errors_and_its_own_exceptions() -> None:
    error = ValueError()
    source: Completion[int] = Completion()
    assert completed(3).map(lambda value: value * 2).result() == 6
    assert failed(error).map(str).error is error
    mapped = source.map(lambda value: 1 // value)
    source.complete(0)
    assert isinstance(mapped.error, ZeroDivisionError)


def test_cancelling_a_mapped_completion_cancels_its_source() -> None:
    source: Completion[int] = Completion()
    source.map(str).cancel()
    assert source.is_cancelled


@pytest.mark.parametrize("finish", [lambda c: c.complete(1), lambda c: c.fail(ValueError())], ids=["value", "error"])
def test_all_done_waits_for_every_result(finish: Callable[[Completion[int]], None]) -> None:
    first: Completion[int] = Completion()
    second: Completion[int] = Completion()
    together = all_done([first, completed(0), second])
    finish(first)
    assert not together.is_done
    finish(second)
    assert together.is_done
    assert all_done([]).is_done


@pytest.mark.parametrize("is_early", [True, False])
def test_compose_takes_the_result_of_the_second_completion(is_early: bool) -> None:
    first: Completion[int] = completed(1) if is_early else Completion()
    second: Completion[int] = Completion()
    composed = first.compose(lambda _: second)
    first.complete(1)
    assert not composed.is_done
    second.complete(2)
    assert composed.result() == 2
    refused = failed(ValueError("no")).compose(lambda _: second)
    with pytest.raises(ValueError, match="no"):
        refused.result()


def test_gather_passes_all_values_or_an_error() -> None:
    late: Completion[int] = Completion()
    together = gather([completed(1), late], sum)
    assert not together.is_done
    late.complete(2)
    assert together.result() == 3
    with pytest.raises(ValueError, match="no"):
        gather([completed(1), failed(ValueError("no"))], sum).result()


def test_cancelling_all_done_cancels_what_is_incomplete() -> None:
    first: Completion[int] = Completion()
    all_done([first, completed(0)]).cancel()
    assert first.is_cancelled


def test_an_error_for_a_client_keeps_nothing_that_its_callers_used() -> None:
    class Used:
        """Something that a frame refers to."""

    def refuse(used: Used) -> None:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, str(used))

    used = Used()
    kept = ref(used)
    waiting: Completion[Used] = Completion()
    gc.disable()
    try:
        for refused in (waiting.map(refuse), completed(used).map(refuse)):
            waiting.complete(used)
            assert isinstance(refused.error, KafkaError)
        del used, waiting
        assert kept() is None
    finally:
        gc.enable()
