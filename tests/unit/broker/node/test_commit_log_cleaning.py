"""When the cleaning of commit logs runs."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from broker.node.commit_log_cleaning import CommitLogCleaning
from replication.io_executor import InlineIoExecutor
from replication.timer_queue import TimerQueue
from storage.io.deferred_file_ops import DiskSpace
from storage.io.disk import StorageError

MAX_DEAD_MS = 4_000_000
SETTINGS = {
    "barnabas.commitlog.max.dead.ms": MAX_DEAD_MS,
    "barnabas.commitlog.clean.max.bytes.per.second": 1000,
    "barnabas.commitlog.settle": "idle",
}
INTERVAL_MS = 30_000


class _Node:
    """A broker with one log directory, whose passes have the given steps, or an error instead of steps."""

    def __init__(self, *passes: list[int | StorageError] | StorageError, settle: str = "idle") -> None:
        self.now_ms = 0
        self.timers = TimerQueue()
        self.log: list[tuple[int, str]] = []
        self._passes = list(passes)
        self.settling: list[list[int | StorageError]] = []
        self.must_end: Callable[[], bool] = bool
        """Whether the settling must end; it asks in each step."""
        self.busy_s = 0.0
        space = {"/a": DiskSpace()}
        self.space = space["/a"]
        self.releases: list[int] = []
        """When replaced files were released."""
        self.turns: list[Callable[[], None]] = []
        """What runs in the next turn of the loop."""
        self.unready = self.unreleased = 0
        """How many turns more a pass, and the release after it, need."""
        commit_logs = SimpleNamespace(
            is_ready_to_clean=self._is_ready, clean=self._clean, settle=self._settle, release_replaced=self._release
        )
        manager = SimpleNamespace(directories={"/a": None}, disk_space=space, commit_logs=commit_logs)
        replicas: Any = SimpleNamespace(
            log_manager=manager, directory_failed=lambda path, _: self.log.append((self.now_ms, f"{path} failed"))
        )
        clock = SimpleNamespace(mono_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms)
        loop = SimpleNamespace(call_soon=self.turns.append)
        dependencies: Any = SimpleNamespace(worker=InlineIoExecutor(), timers=self.timers, clock=clock, loop=loop)
        settings = {**SETTINGS, "barnabas.commitlog.settle": settle}
        config: Any = SimpleNamespace(number=settings.__getitem__, value=settings.__getitem__)
        self.cleaning = CommitLogCleaning(dependencies, replicas, lambda: config, lambda: self.busy_s)
        self.cleaning.start()

    def _is_ready(self, directory: str, wall_ms: int, max_dead_ms: int) -> bool:
        assert (directory, wall_ms, max_dead_ms) == ("/a", self.now_ms, MAX_DEAD_MS)
        self.unready -= 1
        return self.unready < 0

    def _release(self, directory: str) -> bool:
        assert directory == "/a"
        self.releases.append(self.now_ms)
        self.unreleased -= 1
        return self.unreleased >= 0

    def _clean(self, directory: str, wall_ms: int, max_dead_ms: int, *, is_full: bool) -> Iterator[int] | None:
        assert (directory, wall_ms, max_dead_ms) == ("/a", self.now_ms, MAX_DEAD_MS)
        if not self._passes:
            return None
        self.log.append((self.now_ms, "full" if is_full else "begins"))
        begun = self._passes.pop(0)
        if isinstance(begun, StorageError):
            raise begun
        return self._steps(begun)

    def _settle(self, directory: str, wall_ms: int, is_full: Callable[[], bool]) -> Iterator[int] | None:
        assert (directory, wall_ms, is_full()) == ("/a", self.now_ms, False)
        self.must_end = is_full
        return self._steps(self.settling.pop(0)) if self.settling else None

    def _steps(self, results: list[int | StorageError]) -> Iterator[int]:
        for result in results:
            if isinstance(result, StorageError):
                raise result
            self.log.append((self.now_ms, f"{result} bytes"))
            yield result

    def run_until(self, end_ms: int) -> None:
        while (due_ms := self.timers.next_mono_ms()) is not None and due_ms <= end_ms:
            self.now_ms = due_ms
            self.timers.run_due(due_ms)


def test_a_pass_begins_an_interval_after_the_last_one_has_ended() -> None:
    node = _Node([0], [], [0])
    node.run_until(10 * INTERVAL_MS)
    assert [at for at, what in node.log if what == "begins"] == [INTERVAL_MS, 2 * INTERVAL_MS, 3 * INTERVAL_MS]
    assert node.releases == [INTERVAL_MS, 2 * INTERVAL_MS, 3 * INTERVAL_MS]


def test_a_pass_over_many_slots_is_prepared_and_ended_in_several_turns() -> None:
    node = _Node([0])
    node.unready, node.unreleased = 2, 3
    node.run_until(INTERVAL_MS)
    seen = []
    while node.turns:
        seen.append((len(node.log), len(node.releases)))
        node.turns.pop(0)()
    assert seen == [(0, 0), (0, 0), (2, 1), (2, 2), (2, 3)]
    node.run_until(2 * INTERVAL_MS)
    assert len(node.releases) == 4


def test_bytes_are_written_at_the_rate() -> None:
    node = _Node([500, 2000, 1], [])
    node.run_until(4 * INTERVAL_MS)
    assert [(at - INTERVAL_MS, what) for at, what in node.log[1:4]] == [
        (0, "500 bytes"),
        (500, "2000 bytes"),
        (2500, "1 bytes"),
    ]
    assert node.log[4] == (2 * INTERVAL_MS + 2501, "begins")


def test_a_full_disk_is_cleaned_without_waiting() -> None:
    node = _Node([5000, 5000, 5000])
    node.space.is_full = True
    node.run_until(INTERVAL_MS)
    assert node.log == [(INTERVAL_MS, what) for what in ("full", "5000 bytes", "5000 bytes", "5000 bytes")]


def test_a_full_disk_ends_a_pass_and_a_failed_one_the_directory() -> None:
    node = _Node(
        [StorageError("write", "/a/x", OSError(errno.ENOSPC, "full"))],
        [StorageError("write", "/a/x", OSError(errno.EIO, "broken"))],
    )
    node.run_until(10 * INTERVAL_MS)
    assert node.log == [(INTERVAL_MS, "begins"), (2 * INTERVAL_MS, "begins"), (2 * INTERVAL_MS, "/a failed")]


def test_a_disk_that_fails_at_the_begin_of_a_pass_ends_the_directory_and_not_the_node() -> None:
    full, broken = (
        StorageError("get the free space of", "/a", OSError(code, "")) for code in (errno.ENOSPC, errno.EIO)
    )
    node = _Node(full, broken)
    node.run_until(10 * INTERVAL_MS)
    assert node.log == [(INTERVAL_MS, "begins"), (2 * INTERVAL_MS, "begins"), (2 * INTERVAL_MS, "/a failed")]


def test_nothing_is_cleaned_after_the_stop() -> None:
    node = _Node([5000, 5000], [])
    node.run_until(INTERVAL_MS)
    node.cleaning.is_stopped = True
    node.run_until(10 * INTERVAL_MS)
    assert [what for _, what in node.log] == ["begins", "5000 bytes"]


def test_files_are_settled_at_the_rate_while_the_loop_is_idle() -> None:
    node = _Node()
    node.settling = [[2000, 10], [7]]
    node.run_until(5 * INTERVAL_MS)
    assert node.log == [
        (INTERVAL_MS, "2000 bytes"),
        (INTERVAL_MS + 2000, "10 bytes"),
        (2 * INTERVAL_MS + 2010, "7 bytes"),
    ]


def test_settling_waits_while_the_loop_is_busy() -> None:
    node = _Node()
    node.settling = [[40_000, 10]]
    node.run_until(INTERVAL_MS)
    node.busy_s += 4
    node.run_until(2 * INTERVAL_MS)
    node.busy_s += 4
    node.run_until(3 * INTERVAL_MS)
    assert node.log == [(INTERVAL_MS, "40000 bytes")]
    node.run_until(6 * INTERVAL_MS)
    assert [what for _, what in node.log] == ["40000 bytes", "10 bytes"]


def test_always_settles_under_load_and_never_not_at_all() -> None:
    always, never = _Node(settle="always"), _Node(settle="never")
    for node in (always, never):
        node.settling = [[5], [6]]
        for turn in range(4):
            node.busy_s += 25
            node.run_until(turn * INTERVAL_MS)
    assert [what for _, what in always.log] == ["5 bytes", "6 bytes"]
    assert never.log == []


def test_nothing_is_settled_on_a_full_disk() -> None:
    node = _Node(settle="always")
    node.settling = [[5]]
    node.space.is_full = True
    node.run_until(5 * INTERVAL_MS)
    assert node.log == []
    node.space.is_full = False
    node.run_until(6 * INTERVAL_MS)
    assert [what for _, what in node.log] == ["5 bytes"]


def test_cleaning_goes_on_while_a_settling_waits() -> None:
    node = _Node([], [1], [2])
    node.settling = [[40_000, 10]]
    node.run_until(INTERVAL_MS)
    node.busy_s += 30
    node.run_until(2 * INTERVAL_MS)
    node.busy_s += 30
    node.run_until(3 * INTERVAL_MS + 10)
    assert [what for _, what in node.log if "bytes" in what] == ["40000 bytes", "1 bytes", "2 bytes"]


def test_a_settling_that_waits_so_long_that_dead_batches_in_its_files_get_overdue_is_ended() -> None:
    """Cleaning leaves these files out meanwhile, and batches that died since it began would be copied as live ones."""
    node = _Node()
    node.settling = [[40_000, 10]]
    for turn in range(1, 2 + MAX_DEAD_MS // 8 // INTERVAL_MS):
        node.run_until(turn * INTERVAL_MS)
        assert ([what for _, what in node.log], node.must_end()) == (["40000 bytes"], False)
        node.busy_s += 30
    node.run_until(node.now_ms + 2 * INTERVAL_MS)
    assert ([what for _, what in node.log], node.must_end()) == (["40000 bytes", "10 bytes"], True)
