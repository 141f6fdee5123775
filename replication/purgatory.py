"""Delayed operations that wait for a key to change (Kafka: DelayedOperationPurgatory), and watchers of keys.

RULES    1. A key names state that changes. `wake(key)` notifies its watchers in the order in which they were added.
         2. A woken operation is queued; the next `drain` calls its `try_complete`. Several wakes before a drain count as one.
         3. An operation ends once: it completes, its timer expires, or it is cancelled. The purgatory then forgets it.
         4. `on_wake` notifies the driver when the queue becomes non-empty. Operations woken during a drain wait for the next
            drain, so two operations that wake each other cannot block the event loop.
         5. All operations share one timer heap.
NOT HERE Conditions of completion (each operation), what changes keys (`partition.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from replication.cooperative_tasks import no_op
from replication.timer_queue import Timer, TimerQueue

Key = Hashable


class Watcher(Protocol):
    """Is notified when a key changes."""

    def on_key_changed(self, key: Key) -> None:
        """`key` changed; must be quick and must not watch, unwatch or wake."""


class DelayedOperation:
    """A waiting request; subclasses define completion and expiration."""

    __slots__ = ("is_queued", "keys", "purgatory", "timer")

    def __init__(self) -> None:
        self.purgatory: Purgatory | None = None
        self.keys: tuple[Key, ...] = ()
        self.timer: Timer | None = None
        self.is_queued = False

    def try_complete(self) -> bool:
        """Check the condition; respond and return True if it holds."""
        raise NotImplementedError

    def expire(self) -> None:
        """The timeout has passed: respond with the present state."""
        raise NotImplementedError

    def on_key_changed(self, key: Key) -> None:  # noqa: ARG002
        """Queue for the next drain."""
        self.wake()

    def wake(self) -> None:
        """Queue for the next drain."""
        if not self.is_queued and self.purgatory is not None:
            self.is_queued = True
            self.purgatory.enqueue(self)

    def cancel(self) -> None:
        """Stop waiting without a response; does nothing if it does not wait."""
        if self.purgatory is not None:
            self.purgatory.remove(self)


class Purgatory:
    """Watchers by key, and the queue of woken operations."""

    def __init__(self, timers: TimerQueue) -> None:
        self.timers = timers
        self.on_wake: Callable[[], object] = no_op
        self._watchers: dict[Key, dict[Watcher, None]] = {}
        self._woken: deque[DelayedOperation] = deque()
        self._is_wake_signalled = False
        self._waiting = 0

    def __len__(self) -> int:
        """The number of waiting operations."""
        return self._waiting

    # ------------------------------------------------------------ watching
    def watch(self, watcher: Watcher, key: Key) -> None:
        """Notify `watcher` of changes of `key`; a second call has no effect."""
        self._watchers.setdefault(key, {})[watcher] = None

    def unwatch(self, watcher: Watcher, key: Key) -> None:
        """Stop notifying; does nothing if it did not watch."""
        watchers = self._watchers.get(key)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[key]

    def wake(self, key: Key) -> None:
        """Notify the watchers of a key."""
        for watcher in self._watchers.get(key, ()):
            watcher.on_key_changed(key)

    # ------------------------------------------------------------ waiting
    def park(self, operation: DelayedOperation, keys: Iterable[Key], deadline_mono_ms: int) -> None:
        """Wait for a change of any of `keys`, which may be empty, or for the deadline."""
        assert operation.purgatory is None, "parked twice"
        operation.purgatory = self
        operation.keys = tuple(keys)
        for key in operation.keys:
            self.watch(operation, key)
        operation.timer = self.timers.schedule(deadline_mono_ms, lambda: self.expire(operation))
        self._waiting += 1

    def remove(self, operation: DelayedOperation) -> None:
        """Remove an operation and its timer."""
        for key in operation.keys:
            self.unwatch(operation, key)
        if operation.timer is not None:
            operation.timer.cancel()
        operation.purgatory = operation.timer = None
        operation.keys = ()
        self._waiting -= 1

    def enqueue(self, operation: DelayedOperation) -> None:
        """Queue a woken operation for the next drain."""
        self._woken.append(operation)
        if not self._is_wake_signalled:
            self._signal()

    def drain(self) -> int:
        """Retry all operations woken so far; returns how many there were."""
        woken = self._woken
        count = len(woken)
        self._is_wake_signalled = False
        try:
            for _ in range(count):
                operation = woken.popleft()
                operation.is_queued = False
                if operation.purgatory is not None and operation.try_complete() and operation.purgatory is not None:
                    self.remove(operation)
        finally:
            # After an exception in one operation, the others are retried by the next drain.
            if woken and not self._is_wake_signalled:
                self._signal()
        return count

    def _signal(self) -> None:
        self._is_wake_signalled = True
        self.on_wake()

    def expire(self, operation: DelayedOperation) -> None:
        """Expire an operation; does nothing if it does not wait."""
        if operation.purgatory is not None:
            self.remove(operation)
            operation.expire()
