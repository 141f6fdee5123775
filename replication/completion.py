"""The result of an operation that completes now or later (Kafka: CompletableFuture).

RULES    1. A completion gets one result: a value or an error. Later results are ignored, since a response, a timeout and a
            closed connection may race.
         2. `then` calls the callback at once if the result exists; a result before the return is not a special case.
         3. `cancel` means that the result is not needed any more: `on_cancel` is called, callbacks are not.
         4. Everything runs on the thread of the state machines; nothing here reads a clock.
NOT HERE Threads (`io_executor.py`), waiting for changes of a partition (`purgatory.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from protocol.errors import KafkaError, without_frames
from replication.timer_queue import Timer, TimerQueue

T = TypeVar("T")
U = TypeVar("U")


class Completion(Generic[T]):
    """The result of an operation, now or later.

    `value` and `error` may be read when `is_done`; an error is the exception that `result` raises. `on_cancel` is called once
    if the result is not needed any more.
    """

    __slots__ = ("_callbacks", "_deadline", "error", "is_cancelled", "is_done", "on_cancel", "value")

    value: T

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self.is_done = self.is_cancelled = False
        self.error: Exception | None = None
        self.on_cancel = on_cancel
        self._callbacks: list[Callable[[Completion[T]], None]] | None = None
        self._deadline: Timer | None = None

    def complete(self, value: T) -> None:
        """Set the result."""
        if not self.is_done:
            self.value = value
            self._finish()

    def fail(self, error: Exception) -> None:
        """Set an error as the result."""
        if not self.is_done:
            self.error = error
            self._finish()

    def result(self) -> T:
        """The value.

        Raises:
            Exception: the error.
        """
        assert self.is_done, "the result exists"
        if self.error is not None:
            raise self.error
        return self.value

    def then(self, callback: Callable[[Completion[T]], None]) -> None:
        """Call `callback` with this completion when the result exists, at once if it does."""
        if not self.is_done:
            if self._callbacks is None:
                self._callbacks = [callback]
            else:
                self._callbacks.append(callback)
        elif not self.is_cancelled:
            callback(self)

    def handle(self, function: Callable[[Completion[T]], U]) -> Completion[U]:
        """The completion of `function(self)`, called when the result exists; an exception of `function` is the error.

        Cancelling it cancels this completion.
        """
        handled: Completion[U] = Completion(self.cancel)

        def on_done(done: Completion[T]) -> None:
            try:
                value = function(done)
            except Exception as error:  # noqa: BLE001  # the consumer of the result handles it
                handled.fail(_kept(error))
            else:
                handled.complete(value)

        self.then(on_done)
        return handled

    def map(self, function: Callable[[T], U]) -> Completion[U]:
        """The completion of `function(value)`; errors pass through, and an exception of `function` is the error."""
        if self.is_done and self.error is None and not self.is_cancelled:
            try:
                return completed(function(self.value))
            except Exception as error:  # noqa: BLE001  # the consumer of the result handles it
                return failed(_kept(error))
        return self.handle(lambda done: function(done.result()))

    def compose(self, function: Callable[[T], Completion[U]]) -> Completion[U]:
        """The result of the completion that `function(value)` returns; errors and exceptions as in `map`."""
        mapped = self.map(function)
        if mapped.is_done and mapped.error is None:
            return mapped.value
        composed: Completion[U] = Completion(self.cancel)
        mapped.then(lambda _: composed.follow(mapped.value) if mapped.error is None else composed.fail(mapped.error))
        return composed

    def follow(self, other: Completion[T]) -> None:
        """Take the result of another completion when it exists."""
        other.then(lambda _: self.complete(other.value) if other.error is None else self.fail(other.error))

    def expire_at(self, timers: TimerQueue, at_mono_ms: int, on_expire: Callable[[], None]) -> None:
        """Call `on_expire`, which sets a result, unless there is one before the deadline."""
        if not self.is_done:
            self._deadline = timers.schedule(at_mono_ms, on_expire)

    def cancel(self) -> None:
        """The result is not needed any more (rule 3)."""
        if self.is_done:
            return
        on_cancel = self.on_cancel
        self.is_cancelled = True
        self._callbacks = None
        self._finish()
        if on_cancel is not None:
            on_cancel()

    def _finish(self) -> None:
        """Drop the references to both sides, to break cycles that hold open files; then call the callbacks."""
        self.is_done = True
        self.on_cancel = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback(self)


def _kept(error: Exception) -> Exception:
    """An error that a completion keeps; only a bug needs its traceback."""
    return without_frames(error) if isinstance(error, KafkaError) else error


class _Completed(Completion[T]):
    """A completion that has its value from the beginning; it needs no state."""

    __slots__ = ()

    is_done = True
    is_cancelled = False
    error: Exception | None = None

    def __init__(self, value: T) -> None:
        self.value = value


completed = _Completed


class SharedCompletion(Completion[T]):
    """A completion that requests of several clients wait for: `cancel` of one of them has no effect on the others."""

    __slots__ = ()

    def cancel(self) -> None:
        """Nothing: the result is still needed."""


def failed(error: Exception) -> Completion[T]:
    """A completion that has its error."""
    completion: Completion[T] = Completion()
    completion.fail(error)
    return completion


def all_done(completions: Iterable[Completion[T]]) -> Completion[None]:
    """Completes when all of them have a value or an error; cancelling it cancels them."""
    incomplete = [completion for completion in completions if not completion.is_done]
    remaining = len(incomplete)

    def cancel() -> None:
        for completion in incomplete:
            completion.cancel()

    together: Completion[None] = Completion(cancel)
    if not remaining:
        together.complete(None)

    def on_done(_: Completion[T]) -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            together.complete(None)

    for completion in incomplete:
        completion.then(on_done)
    return together


def gather(completions: Iterable[Completion[T]], function: Callable[[list[T]], U]) -> Completion[U]:
    """The completion of `function(values)`, in order; the first error among them is the error."""
    parts, values = list(completions), []
    for part in parts:
        if not part.is_done or part.error is not None:
            break
        values.append(part.value)
    else:
        return completed(function(values))
    return all_done(parts).map(lambda _: function([part.result() for part in parts]))
