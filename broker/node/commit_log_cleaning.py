"""The periodic cleaning and settling of the commit logs.

RULES    1. In each log directory a pass of cleaning, and one of settling, begins `_INTERVAL_MS` after the last one has ended.
            Their steps run in the directory's background thread, one at a time, so that deletions are not delayed for long.
         2. A step begins when the bytes of those before it are within the rate, which each pass has for itself. On a full disk
            it begins at once.
         3. A full disk ends a pass; another failure takes the directory offline.
         4. `barnabas.commitlog.settle`: with `idle`, steps of settling begin only while the event loop was busy for less than
            `IDLE_SHARE` of the last interval; all appends and reads run on it. A pass that is under way waits, but ends when
            that takes an eighth of `barnabas.commitlog.max.dead.ms`: meanwhile nothing else cleans its files.
NOT HERE What is cleaned and settled (storage/commitlog/cleaner.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.node.kraft_runtime import RuntimeDependencies
from replication.io_executor import IoResult
from replication.partition.replica_manager import ReplicaManager
from storage.io.disk import StorageError

_INTERVAL_MS: Final = 30_000
IDLE_SHARE: Final = 0.1
_ENDED: Final = -1


@dataclass(slots=True, eq=False)
class _Pass:
    """A pass in one log directory."""

    directory: str
    begin_next: Callable[[str], None]
    is_settling: bool
    begun_ms: int
    due_ms: float
    """When the bytes so far are within the rate."""
    steps: Iterator[int] = field(init=False)
    is_over: bool = False
    """Whether it has waited too long (rule 4)."""


class CommitLogCleaning:
    """Cleans and settles the commit logs of one broker."""

    def __init__(
        self,
        dependencies: RuntimeDependencies,
        replicas: ReplicaManager,
        config: Callable[[], BrokerConfig],
        busy_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`config`: as it is now; `busy_s`: the CPU time of the calling thread, which is that of the event loop."""
        self._dependencies = dependencies
        self._replicas = replicas
        self._config = config
        self._busy_s = busy_s
        self._busy_before_s = 0.0
        self._is_idle = False
        self.is_stopped = False

    def start(self) -> None:
        """Begin the first passes after an interval."""
        self._busy_before_s = self._busy_s()
        self._after(_INTERVAL_MS, self._observe)
        for directory in self._replicas.log_manager.directories:
            self._begin_later(self._clean, directory)
            self._begin_later(self._settle, directory)

    def _observe(self) -> None:
        busy_s = self._busy_s()
        self._is_idle = busy_s - self._busy_before_s < IDLE_SHARE * _INTERVAL_MS / 1000
        self._busy_before_s = busy_s
        self._after(_INTERVAL_MS, self._observe)

    def _after(self, delay_ms: int, task: Callable[[], None]) -> None:
        if not self.is_stopped:
            self._dependencies.timers.schedule(self._dependencies.clock.mono_ms() + delay_ms, task)

    def _in_next_turn(self, task: Callable[[], None]) -> None:
        if not self.is_stopped:
            self._dependencies.loop.call_soon(task)

    def _begin_later(self, begin: Callable[[str], None], directory: str) -> None:
        self._after(_INTERVAL_MS, partial(begin, directory))

    # ---- passes ------------------------------------------------------------------------------------------

    def _clean(self, directory: str) -> None:
        max_dead_ms, is_full = self._config().number("barnabas.commitlog.max.dead.ms"), self._is_full(directory)
        commit_logs, wall_ms = self._replicas.log_manager.commit_logs, self._dependencies.clock.wall_ms()
        if self._is_online(directory):
            try:
                if not commit_logs.is_ready_to_clean(directory, wall_ms, max_dead_ms):
                    self._in_next_turn(partial(self._clean, directory))
                    return
                steps = commit_logs.clean(directory, wall_ms, max_dead_ms, is_full=is_full)
            except StorageError as error:
                self._failed(directory, error, self._clean)
            else:
                self._begin(self._new_pass(directory, self._clean, is_settling=False), steps)

    def _settle(self, directory: str) -> None:
        commit_logs, wall_ms = self._replicas.log_manager.commit_logs, self._dependencies.clock.wall_ms()
        if self._is_online(directory):
            some = self._new_pass(directory, self._settle, is_settling=True)

            def must_end() -> bool:
                return some.is_over or self._is_full(directory)

            self._begin(some, commit_logs.settle(directory, wall_ms, must_end) if self._may_settle(directory) else None)

    def _new_pass(self, directory: str, begin_next: Callable[[str], None], *, is_settling: bool) -> _Pass:
        now_ms = self._dependencies.clock.mono_ms()
        return _Pass(directory, begin_next, is_settling, now_ms, now_ms)

    def _begin(self, some: _Pass, steps: Iterator[int] | None) -> None:
        if steps is None:
            self._begin_later(some.begin_next, some.directory)
        else:
            some.steps = steps
            self._step(some)

    def _is_online(self, directory: str) -> bool:
        return directory in self._replicas.log_manager.directories

    def _is_full(self, directory: str) -> bool:
        return self._replicas.log_manager.disk_space[directory].is_full

    def _may_settle(self, directory: str) -> bool:
        mode = self._config().value("barnabas.commitlog.settle")
        return (mode == "always" or (mode == "idle" and self._is_idle)) and not self._is_full(directory)

    # ---- steps -------------------------------------------------------------------------------------------

    def _step(self, some: _Pass) -> None:
        written = [_ENDED]

        def run() -> None:
            written[0] = next(some.steps, _ENDED)

        def on_result(result: IoResult) -> None:
            error = result.value
            if error is not None:
                self._failed(some.directory, error, some.begin_next)
            elif written[0] == _ENDED:
                self._end(some)
            else:
                some.due_ms += (
                    written[0] * 1000 / self._config().number("barnabas.commitlog.clean.max.bytes.per.second")
                )
                self._wait(some)

        if not self.is_stopped:
            self._dependencies.worker.background(some.directory, run).then(on_result)

    def _end(self, some: _Pass) -> None:
        if self._replicas.log_manager.commit_logs.release_replaced(some.directory):
            self._in_next_turn(partial(self._end, some))
        else:
            self._begin_later(some.begin_next, some.directory)

    def _wait(self, some: _Pass) -> None:
        now_ms, is_full = self._dependencies.clock.mono_ms(), self._is_full(some.directory)
        if some.is_settling and not (is_full or some.is_over or self._may_settle(some.directory)):
            some.due_ms = now_ms + _INTERVAL_MS
            some.is_over = some.due_ms - some.begun_ms > self._config().number("barnabas.commitlog.max.dead.ms") // 8
            self._after(_INTERVAL_MS, partial(self._wait, some))
        elif some.due_ms - now_ms < 1 or is_full:
            self._step(some)
        else:
            self._after(int(some.due_ms - now_ms), partial(self._wait, some))

    def _failed(self, directory: str, error: StorageError, begin_next: Callable[[str], None]) -> None:
        if error.is_full:
            self._begin_later(begin_next, directory)
        else:
            self._replicas.directory_failed(directory, error)
