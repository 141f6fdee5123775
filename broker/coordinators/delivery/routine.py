"""A sequence of steps that wait for completions, written as a generator: it yields a completion and gets its value.

RULES    1. An error of the completion is raised where the generator waits.
         2. A stopped routine never continues; what it waited for completes without effect.
NOT HERE The event loop: completions are completed by others.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from replication.completion import Completion

T = TypeVar("T")
Steps = Generator[Completion[Any], Any, T]
"""Steps with a result."""


class Routine:
    """Runs steps."""

    def __init__(self, steps: Steps[None]) -> None:
        self._steps = steps
        self._is_stopped = self._is_running = False

    def start(self) -> None:
        """Runs up to the first completion that is not done."""
        self._continue(None)

    def stop(self) -> None:
        """Ends the steps where they wait (rule 2); if one of them calls this, where they wait next."""
        self._is_stopped = True
        if not self._is_running:
            self._steps.close()

    def _continue(self, done: Completion[Any] | None) -> None:
        while not self._is_stopped:
            self._is_running = True
            try:
                if done is not None and done.error is not None:
                    waiting = self._steps.throw(done.error)
                else:
                    waiting = self._steps.send(None if done is None else done.value)
            except StopIteration:
                return
            finally:
                self._is_running = False
            if not waiting.is_done:
                waiting.then(self._continue)
                return
            done = waiting
