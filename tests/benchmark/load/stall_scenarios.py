"""The scenarios of `stalls`: paced producers next to the broker's own work, and next to another program with the same work.

RULES    1. A scenario prepares before its producers start, and cleans up afterwards.
         2. The producers' topic is in the quick log directory. The second log directory is our own file system
            (tests/support/faulty_directory.py), which is quick until a scenario slows it down.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.benchmark.load import background_work, raw
from tests.benchmark.load.background_work import Task
from tests.support.faulty_directory import FaultyDirectory
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


class BrokerUnderLoad(NamedTuple):
    """A broker with two log directories."""

    name: str
    bootstrap: str
    quick: Path
    slow: FaultyDirectory | None
    log: Callable[[], str]


Work = Callable[[BrokerUnderLoad, Scale], contextlib.AbstractContextManager[Task | None]]


class Scenario(NamedTuple):
    """The work during a measurement: by the broker, and by another program."""

    name: str
    broker_work: Work
    reference_work: Work | None
    needs_slow_directory: bool = False


def prepare(broker: BrokerUnderLoad, scale: Scale) -> None:
    """Creates the topics that all scenarios use, each in its directory."""
    with RawClient(broker.bootstrap, 60) as client:
        _create_in(client, QUIET, broker.quick)
        _create_in(client, SYNCED, broker.quick, flush_messages=1)
        _create_in(client, COLD, broker.quick)
        if broker.slow is not None:
            _create_in(client, BUSY, broker.slow.path, segment_bytes=1 << 20)
            _create_in(client, SLEEPY, broker.slow.path)
    background_work.fill_existing(broker.bootstrap, COLD, scale.cold_bytes)


def _create_in(client: RawClient, name: str, directory: Path, **configs: int) -> None:
    """Brokers choose the directory with the fewest partitions, so this creates others until the topic is in the wanted one."""
    configs.setdefault("segment_bytes", background_work.SEGMENT_BYTES)
    for attempt in range(9):
        create(client, name, **configs)
        if (directory / f"{name}-0").is_dir():
            return
        raw.delete_topic(client, name)
        create(client, f"filler-{name}-{attempt}")
    raise RuntimeError(f"{name} was never placed in {directory}")


@contextlib.contextmanager
def nothing(_: BrokerUnderLoad, __: Scale) -> Iterator[Task | None]:
    yield None


@contextlib.contextmanager
def scan(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    yield Task(background_work.scan_topic, (broker.bootstrap, COLD, broker.quick / f"{COLD}-0"))


@contextlib.contextmanager
def scan_reference(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    yield Task(background_work.scan_files, (broker.quick / f"{COLD}-0",))


@contextlib.contextmanager
def sync(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    yield Task(background_work.produce_synced, (broker.bootstrap, SYNCED))


@contextlib.contextmanager
def sync_reference(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    with _folder(broker.quick) as folder:
        yield Task(background_work.write_synced, (folder,))


@contextlib.contextmanager
def delete(broker: BrokerUnderLoad, scale: Scale) -> Iterator[Task]:
    topic = f"deleted-{time.monotonic_ns()}"
    with RawClient(broker.bootstrap, 60) as client:
        _create_in(client, topic, broker.quick)
    background_work.fill_existing(broker.bootstrap, topic, scale.deleted_bytes)
    yield Task(background_work.delete_topic_later, (broker.bootstrap, topic))


@contextlib.contextmanager
def delete_reference(broker: BrokerUnderLoad, scale: Scale) -> Iterator[Task]:
    folder = broker.quick.parent / _FILES
    background_work.write_files(folder, scale.deleted_bytes)
    yield Task(background_work.delete_files, (folder,))


@contextlib.contextmanager
def partitions(broker: BrokerUnderLoad, scale: Scale) -> Iterator[Task]:
    yield Task(background_work.create_partitions, (broker.bootstrap, scale.partitions))


@contextlib.contextmanager
def partitions_reference(broker: BrokerUnderLoad, scale: Scale) -> Iterator[Task]:
    with _folder(broker.quick) as folder:
        yield Task(background_work.create_directories, (folder, scale.partitions))


@contextlib.contextmanager
def slow(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    with _slowed(broker):
        yield Task(background_work.use_slow_directory, (broker.bootstrap, BUSY, SLEEPY))


@contextlib.contextmanager
def slow_reference(broker: BrokerUnderLoad, _: Scale) -> Iterator[Task]:
    assert broker.slow is not None
    with _folder(broker.slow.path) as folder, _slowed(broker):
        yield Task(background_work.write_slow_directory, (folder,))


SCENARIOS: Final = (
    Scenario("nothing else", nothing, None),
    Scenario("cold scan", scan, scan_reference),
    Scenario("syncs before acknowledgement", sync, sync_reference),
    Scenario("deletion of a large topic", delete, delete_reference),
    Scenario("topics of many partitions", partitions, partitions_reference),
    Scenario("a slow directory", slow, slow_reference, needs_slow_directory=True),
)


@contextlib.contextmanager
def _slowed(broker: BrokerUnderLoad) -> Iterator[None]:
    assert broker.slow is not None
    broker.slow.slow_down(DELAY_S)
    try:
        yield
    finally:
        broker.slow.slow_down(0.0)


@contextlib.contextmanager
def _folder(directory: Path) -> Iterator[Path]:
    """A folder on the same file system as the broker's directory; removed after the block."""
    folder = directory.parent / _FILES if not directory.is_mount() else directory / f".{_FILES}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for path in folder.glob("*"):
            background_work.remove(path)
        folder.rmdir()
