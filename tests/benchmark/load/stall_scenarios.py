"""The scenes: in each, quiet producers beside a broker that is kept busy, and beside another program that does the same.

RULES    1. A scene prepares before its producers begin, and cleans up behind them.
         2. The quiet topic lies in the quick log directory. The second one is a file system of our own
            (tests/support/faulty_directory.py) which is quick until the scene that wants it slow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.benchmark.load import background_work as do
from tests.benchmark.load import raw
from tests.benchmark.load.background_work import Task
from tests.support.faulty_directory import TroubledDirectory
from tests.support.loading import create
from tests.support.raw_client import RawClient

QUIET: Final = "quiet"
COLD, SYNCED, BUSY, SLEEPY = "cold", "synced", "busy", "sleepy"
DELAY_S: Final = 0.2
GIB: Final = 2**30
_FILES: Final = "other-program"


class Scale(NamedTuple):
    seconds: float
    cold_bytes: int
    deleted_bytes: int
    partitions: int
    rounds: int


FULL: Final = Scale(12, 4 * GIB, 10 * GIB, 1000, 3)
QUICK: Final = Scale(3, GIB, GIB, 1000, 1)


class Stage(NamedTuple):
    """A broker with two log directories, and how its log reads."""

    name: str
    bootstrap: str
    quick: Path
    slow: TroubledDirectory | None
    log: Callable[[], str]


Actor = Callable[[Stage, Scale], contextlib.AbstractContextManager[Task | None]]


class Scenario(NamedTuple):
    """What goes on while the producers are measured: in the broker, and in another program."""

    name: str
    beside_broker: Actor
    beside_program: Actor | None
    needs_slow_directory: bool = False


def prepare(stage: Stage, scale: Scale) -> None:
    """Topics that live as long as the broker, each in the directory where it belongs."""
    with RawClient(stage.bootstrap, 60) as client:
        _create_in(client, QUIET, stage.quick)
        _create_in(client, SYNCED, stage.quick, flush_messages=1)
        _create_in(client, COLD, stage.quick)
        if stage.slow is not None:
            _create_in(client, BUSY, stage.slow.path, segment_bytes=1 << 20)
            _create_in(client, SLEEPY, stage.slow.path)
    do.fill_existing(stage.bootstrap, COLD, scale.cold_bytes)


def _create_in(client: RawClient, name: str, directory: Path, **configs: int) -> None:
    """Brokers choose the directory with the fewest partitions: make others until the wanted one lies where it should."""
    configs.setdefault("segment_bytes", do.SEGMENT_BYTES)
    for attempt in range(9):
        create(client, name, **configs)
        if (directory / f"{name}-0").is_dir():
            return
        raw.delete_topic(client, name)
        create(client, f"filler-{name}-{attempt}")
    raise RuntimeError(f"{name} never lay in {directory}")


@contextlib.contextmanager
def nothing(_: Stage, __: Scale) -> Iterator[Task | None]:
    yield None


@contextlib.contextmanager
def scan(stage: Stage, _: Scale) -> Iterator[Task]:
    yield Task(do.ask_to_scan, (stage.bootstrap, COLD, stage.quick / f"{COLD}-0"))


@contextlib.contextmanager
def scan_outside(stage: Stage, _: Scale) -> Iterator[Task]:
    yield Task(do.do_scan, (stage.quick / f"{COLD}-0",))


@contextlib.contextmanager
def sync(stage: Stage, _: Scale) -> Iterator[Task]:
    yield Task(do.ask_to_sync, (stage.bootstrap, SYNCED))


@contextlib.contextmanager
def sync_outside(stage: Stage, _: Scale) -> Iterator[Task]:
    with _folder(stage.quick) as folder:
        yield Task(do.do_sync, (folder,))


@contextlib.contextmanager
def delete(stage: Stage, scale: Scale) -> Iterator[Task]:
    topic = f"doomed-{time.monotonic_ns()}"
    with RawClient(stage.bootstrap, 60) as client:
        _create_in(client, topic, stage.quick)
    do.fill_existing(stage.bootstrap, topic, scale.deleted_bytes)
    yield Task(do.ask_to_delete, (stage.bootstrap, topic))


@contextlib.contextmanager
def delete_outside(stage: Stage, scale: Scale) -> Iterator[Task]:
    folder = stage.quick.parent / _FILES
    do.write_files(folder, scale.deleted_bytes)
    yield Task(do.do_delete, (folder,))


@contextlib.contextmanager
def partitions(stage: Stage, scale: Scale) -> Iterator[Task]:
    yield Task(do.ask_for_partitions, (stage.bootstrap, scale.partitions))


@contextlib.contextmanager
def partitions_outside(stage: Stage, scale: Scale) -> Iterator[Task]:
    with _folder(stage.quick) as folder:
        yield Task(do.do_partitions, (folder, scale.partitions))


@contextlib.contextmanager
def slow(stage: Stage, _: Scale) -> Iterator[Task]:
    with _slowed(stage):
        yield Task(do.ask_the_slow_one, (stage.bootstrap, BUSY, SLEEPY))


@contextlib.contextmanager
def slow_outside(stage: Stage, _: Scale) -> Iterator[Task]:
    assert stage.slow is not None
    with _folder(stage.slow.path) as folder, _slowed(stage):
        yield Task(do.do_slowly, (folder,))


SCENARIOS: Final = (
    Scenario("nothing else", nothing, None),
    Scenario("cold scan", scan, scan_outside),
    Scenario("syncs before acknowledgement", sync, sync_outside),
    Scenario("deletion of a large topic", delete, delete_outside),
    Scenario("topics of many partitions", partitions, partitions_outside),
    Scenario("a slow directory", slow, slow_outside, needs_slow_directory=True),
)


@contextlib.contextmanager
def _slowed(stage: Stage) -> Iterator[None]:
    assert stage.slow is not None
    stage.slow.slow_down(DELAY_S)
    try:
        yield
    finally:
        stage.slow.slow_down(0.0)


@contextlib.contextmanager
def _folder(directory: Path) -> Iterator[Path]:
    """A folder beside the broker's own, on the same file system, which goes with the block."""
    folder = directory.parent / _FILES if not directory.is_mount() else directory / f".{_FILES}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for path in folder.glob("*"):
            do.remove(path)
        folder.rmdir()
