"""The scenarios of `stalls`: paced producers next to the broker's own work, and next to another program with the same work.

RULES    1. A scenario prepares before its producers start.
         2. The producers' topic is in the quick log directory. The second log directory is our own file system
            (tests/support/faulty_directory.py), which is quick until a scenario slows it down.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from protocol.messages.logs import AlterReplicaLogDirsRequest
from tests.benchmark.load import background_work as work
from tests.benchmark.load.background_work import Task
from tests.support.faulty_directory import FaultyDirectory
from tests.support.loading import create
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

QUIET: Final = "quiet"
COLD, SYNCED, BUSY, SLEEPY = "cold", "synced", "busy", "sleepy"
DELAY_S: Final = 0.2
GIB: Final = 2**30


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


Work = Callable[[BrokerUnderLoad, Scale], Task | None]
"""Prepares the work, and returns it."""


class Scenario(NamedTuple):
    """The work during a measurement: by the broker, and by another program."""

    name: str
    broker_work: Work
    reference_work: Work | None = None
    is_slow: bool = False
    """Whether the second directory is slow meanwhile."""


def prepare(broker: BrokerUnderLoad, scale: Scale) -> None:
    """Creates the topics that all scenarios use, each in its directory."""
    with RawClient(broker.bootstrap, 60) as client:
        _create_in(client, QUIET, broker.quick)
        _create_in(client, SYNCED, broker.quick, flush_messages=1)
        _create_in(client, COLD, broker.quick)
        if broker.slow is not None:
            _create_in(client, BUSY, broker.slow.path, segment_bytes=1 << 20)
            _create_in(client, SLEEPY, broker.slow.path)
    work.fill_existing(broker.bootstrap, COLD, scale.cold_bytes)


def _create_in(client: RawClient, name: str, directory: Path, **configs: int) -> None:
    """Creates a topic in this directory: brokers remember it although the topic does not exist yet."""
    wanted = {"path": str(directory), "topics": [{"name": name, "partitions": [0]}]}
    client.ask(message(AlterReplicaLogDirsRequest, dirs=[wanted]), 2)
    create(client, name, **{"segment_bytes": work.SEGMENT_BYTES, **configs})
    until((directory / f"{name}-0").is_dir, f"{name} is in {directory}")


def delete(broker: BrokerUnderLoad, scale: Scale) -> Task:
    topic = f"deleted-{time.monotonic_ns()}"
    with RawClient(broker.bootstrap, 60) as client:
        _create_in(client, topic, broker.quick)
    work.fill_existing(broker.bootstrap, topic, scale.deleted_bytes)
    return partial(work.delete_topic_later, broker.bootstrap, topic)


def delete_reference(broker: BrokerUnderLoad, scale: Scale) -> Task:
    folder = broker.quick.parent / work.FILES
    work.write_files(folder, scale.deleted_bytes)
    return partial(work.delete_files, folder)


def write_slowly(broker: BrokerUnderLoad, _: Scale) -> Task:
    assert broker.slow is not None
    return partial(work.write_slow_directory, broker.slow.path)


SCENARIOS: Final = (
    Scenario("nothing else", lambda *_: None),
    Scenario(
        "cold scan",
        lambda broker, _: partial(work.scan_topic, broker.bootstrap, COLD, broker.quick / f"{COLD}-0"),
        lambda broker, _: partial(work.scan_files, broker.quick / f"{COLD}-0"),
    ),
    Scenario(
        "syncs before acknowledgement",
        lambda broker, _: partial(work.produce_synced, broker.bootstrap, SYNCED),
        lambda broker, _: partial(work.write_synced, broker.quick),
    ),
    Scenario("deletion of a large topic", delete, delete_reference),
    Scenario(
        "topics of many partitions",
        lambda broker, scale: partial(work.create_partitions, broker.bootstrap, scale.partitions),
        lambda broker, scale: partial(work.create_directories, broker.quick, scale.partitions),
    ),
    Scenario(
        "a slow directory",
        lambda broker, _: partial(work.use_slow_directory, broker.bootstrap, BUSY, SLEEPY),
        write_slowly,
        is_slow=True,
    ),
)


@contextlib.contextmanager
def slowed(broker: BrokerUnderLoad) -> Iterator[None]:
    """The second directory is slow during the block."""
    assert broker.slow is not None
    broker.slow.slow_down(DELAY_S)
    try:
        yield
    finally:
        broker.slow.slow_down(0.0)
