"""Those who wait for something to move: parked requests, and fetch sessions that note what moved (design D7).

RULES    1. A key names what may move; `wake(key)` tells everyone who watches it, in the order in which they came.
         2. Waiting is reading again: a woken waiter is queued, and the next `drain` has it try again. Several
            wakes before a drain are one try.
         3. A waiter ends once: it is answered, its deadline comes, or it is cancelled; then nothing here
            remembers it any more.
         4. Whoever drives this is told through `on_wake` when the queue was empty and is not any more. What a drain
            wakes is left for the next one, so that no two waiters can keep the loop to themselves.
         5. No timer per waiter: one heap of deadlines for everything.
NOT HERE What is enough to answer (each waiter knows), who moves what (`partition.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from replication.timer_queue import Deadline, Deadlines

Key = Hashable


class Watcher(Protocol):
    """Whoever wants to hear that a key moved."""

    def moved(self, key: Key) -> None:
        """`key` moved; must be quick and must not watch, unwatch or wake."""


class Waiter:
    """One request that waits; subclasses say when there is enough, and what happens when there never is."""

    __slots__ = ("deadline", "is_queued", "keys", "purgatory")

    def __init__(self) -> None:
        self.purgatory: Purgatory | None = None
        self.keys: tuple[Key, ...] = ()
        self.deadline: Deadline | None = None
        self.is_queued = False

    @property
    def is_parked(self) -> bool:
        """Whether it waits now."""
        return self.purgatory is not None

    def try_complete(self) -> bool:
        """Look again; answer and return True when there is enough."""
        raise NotImplementedError

    def expire(self) -> None:
        """The deadline has come: answer with what there is."""
        raise NotImplementedError

    def moved(self, key: Key) -> None:  # noqa: ARG002
        """One of its keys moved: try again at the next drain."""
        self.wake()

    def wake(self) -> None:
        """Have it try again at the next drain."""
        if not self.is_queued and self.purgatory is not None:
            self.is_queued = True
            self.purgatory.enqueue(self)

    def cancel(self) -> None:
        """Stop waiting without an answer; harmless when it does not wait."""
        if self.purgatory is not None:
            self.purgatory.forget(self)


class Purgatory:
    """All watchers by key, and the queue of the woken."""

    def __init__(self, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self.on_wake: Callable[[], None] | None = None
        self._watchers: dict[Key, dict[Watcher, None]] = {}
        self._woken: deque[Waiter] = deque()
        self._is_signalled = False
        self._parked = 0

    def __len__(self) -> int:
        """Waiters that wait now."""
        return self._parked

    @property
    def watched_keys(self) -> int:
        """Keys that somebody watches."""
        return len(self._watchers)

    # ------------------------------------------------------------ watching
    def watch(self, watcher: Watcher, key: Key) -> None:
        """Tell `watcher` whenever `key` moves; watching twice is watching once."""
        watchers = self._watchers.get(key)
        if watchers is None:
            self._watchers[key] = {watcher: None}
        else:
            watchers[watcher] = None

    def unwatch(self, watcher: Watcher, key: Key) -> None:
        """Tell it no more; harmless when it did not watch."""
        watchers = self._watchers.get(key)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[key]

    def wake(self, key: Key) -> None:
        """Tell everyone who watches `key` that it moved."""
        watchers = self._watchers.get(key)
        if watchers is not None:
            for watcher in watchers:
                watcher.moved(key)

    # ------------------------------------------------------------ waiting
    def park(self, waiter: Waiter, keys: Iterable[Key], deadline_mono_ms: int) -> None:
        """Let `waiter` wait for any of `keys` to move, or for its deadline; `keys` may be empty."""
        assert waiter.purgatory is None, "parked twice"
        waiter.purgatory = self
        waiter.keys = tuple(keys)
        for key in waiter.keys:
            self.watch(waiter, key)
        waiter.deadline = self.deadlines.schedule(deadline_mono_ms, lambda: self.expire(waiter))
        self._parked += 1

    def forget(self, waiter: Waiter) -> None:
        """`waiter` waits no more, whatever the reason."""
        for key in waiter.keys:
            self.unwatch(waiter, key)
        if waiter.deadline is not None:
            waiter.deadline.cancel()
        waiter.purgatory = waiter.deadline = None
        waiter.keys = ()
        self._parked -= 1

    def enqueue(self, waiter: Waiter) -> None:
        """`waiter` was woken: have the next `drain` try it."""
        self._woken.append(waiter)
        if not self._is_signalled:
            self._signal()

    def drain(self) -> int:
        """Let everyone woken so far look again; return how many there were."""
        woken = self._woken
        count = len(woken)
        self._is_signalled = False
        try:
            for _ in range(count):
                waiter = woken.popleft()
                waiter.is_queued = False
                if waiter.purgatory is not None and waiter.try_complete() and waiter.purgatory is not None:
                    self.forget(waiter)
        finally:
            if woken and not self._is_signalled:  # one of them failed: the others are not forgotten
                self._signal()
        return count

    def _signal(self) -> None:
        self._is_signalled = True
        if self.on_wake is not None:
            self.on_wake()

    def expire(self, waiter: Waiter) -> None:
        """Its time is over; harmless when it does not wait."""
        if waiter.purgatory is not None:
            self.forget(waiter)
            waiter.expire()
