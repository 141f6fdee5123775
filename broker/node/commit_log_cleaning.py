"""The periodic cleaning of the commit logs.

RULES    1. In each log directory a pass begins `_INTERVAL_MS` after the last one has ended. Its steps run in the directory's
            background thread, one at a time, so that deletions are not delayed for long.
         2. A step begins when the bytes written before it are within the rate. On a full disk it begins at once.
         3. A full disk ends a pass; another failure takes the directory offline.
NOT HERE What is cleaned (storage/commitlog/cleaner.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from broker.node.kraft_runtime import RuntimeDependencies
from replication.io_executor import IoResult
from replication.partition.replica_manager import ReplicaManager

_INTERVAL_MS: Final = 30_000
_ENDED: Final = -1


class CommitLogCleaning:
    """Cleans the commit logs of one broker."""

    def __init__(
        self, dependencies: RuntimeDependencies, replicas: ReplicaManager, setting: Callable[[str], int]
    ) -> None:
        """`setting`: the value of a broker configuration now."""
        self._dependencies = dependencies
        self._replicas = replicas
        self._setting = setting
        self.is_stopped = False

    def start(self) -> None:
        """Begin the first passes after an interval."""
        for directory in self._replicas.log_manager.directories:
            self._after(_INTERVAL_MS, partial(self._begin, directory))

    def _after(self, delay_ms: int, task: Callable[[], None]) -> None:
        if not self.is_stopped:
            self._dependencies.timers.schedule(self._dependencies.clock.mono_ms() + delay_ms, task)

    def _begin(self, directory: str) -> None:
        manager, clock = self._replicas.log_manager, self._dependencies.clock
        if directory not in manager.directories:
            return  # it is offline
        max_dead_ms, is_full = self._setting("barnabas.commitlog.max.dead.ms"), self._is_full(directory)
        steps = manager.engines.clean(directory, clock.wall_ms(), max_dead_ms, is_full=is_full)
        if steps is None:
            self._end(directory)
        else:
            self._step(directory, steps, clock.mono_ms())

    def _end(self, directory: str) -> None:
        self._after(_INTERVAL_MS, partial(self._begin, directory))

    def _step(self, directory: str, steps: Iterator[int], due_ms: float) -> None:
        """Run a step; `due_ms`: when the bytes written so far are within the rate."""
        written = [_ENDED]

        def run() -> None:
            written[0] = next(steps, _ENDED)

        def on_result(result: IoResult) -> None:
            if result.value is not None:
                self._failed(directory, result)
            elif written[0] == _ENDED:
                self._end(directory)
            else:
                self._wait(directory, steps, due_ms + written[0] * 1000 / self._rate)

        if not self.is_stopped:
            self._dependencies.worker.background(directory, run).then(on_result)

    @property
    def _rate(self) -> int:
        return self._setting("barnabas.commitlog.clean.max.bytes.per.second")

    def _is_full(self, directory: str) -> bool:
        return self._replicas.log_manager.disk_space[directory].is_full

    def _wait(self, directory: str, steps: Iterator[int], due_ms: float) -> None:
        delay_ms = due_ms - self._dependencies.clock.mono_ms()
        if delay_ms < 1 or self._is_full(directory):
            self._step(directory, steps, due_ms)
        else:
            self._after(int(delay_ms), partial(self._step, directory, steps, due_ms))

    def _failed(self, directory: str, result: IoResult) -> None:
        error = result.value
        assert error is not None
        if error.is_full:
            self._end(directory)
        else:
            self._replicas.directory_failed(directory, error)
