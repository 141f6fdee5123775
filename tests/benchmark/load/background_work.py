"""Background work while paced producers are measured: by their broker, or the same disk work by another program.

RULES    1. Work runs in its own process until its stop event is set.
         2. Each kind exists twice: requests to the broker, and the reference, which does the broker's disk accesses
            without a broker, in a directory of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from typing import Final

from protocol.messages.groups import OffsetCommitRequest
from tests.benchmark.load import raw
from tests.benchmark.load.raw import Peer, batch, fetch_frame, produce_frame
from tests.support.evicted_files import evict
from tests.support.loading import create, load
from tests.support.messages import message
from tests.support.raw_client import RawClient

MIB: Final = 1 << 20
COLD_BATCH: Final = MIB - 200
SEGMENT_BYTES: Final = 256 * MIB
SYNCING: Final = 4
SLOW_BATCH: Final = 64 << 10
FILES: Final = "other-program"
_PATIENCE_S: Final = 120.0
_CONTEXT = get_context("fork")


Task = Callable[[Event], None]
"""Work that runs until the event is set."""


@contextlib.contextmanager
def running_task(task: Task | None) -> Iterator[None]:
    """Runs it in another process during the block."""
    if task is None:
        yield
        return
    stop = _CONTEXT.Event()
    process = _CONTEXT.Process(target=task, args=(stop,))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(_PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()
    if process.exitcode:
        raise RuntimeError(f"{task} ended with {process.exitcode}")


# ---------------------------------------------------------------- preparing
def fill_existing(bootstrap: str, topic: str, total_bytes: int) -> None:
    """Fills one partition; the data is on disk, and the page cache is clean."""
    with RawClient(bootstrap, _PATIENCE_S) as client:
        one = batch(1, COLD_BATCH)
        load(client, topic, (one for _ in range(total_bytes // len(one))))
    os.sync()


def write_files(directory: Path, total_bytes: int) -> None:
    """Files like those of a partition of this size, without a broker."""
    directory.mkdir(parents=True)
    block = os.urandom(MIB)
    for number in range(total_bytes // SEGMENT_BYTES):
        with (directory / f"{number:020d}.log").open("wb", 0) as file:
            for _ in range(SEGMENT_BYTES // MIB):
                file.write(block)
    os.sync()


def logs_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def delete_topic(bootstrap: str, topic: str) -> None:
    with RawClient(bootstrap, _PATIENCE_S) as client:
        raw.delete_topic(client, topic)


@contextlib.contextmanager
def own_folder(directory: Path) -> Iterator[Path]:
    """A folder on the same file system as the broker's directory; removed after the block."""
    folder = directory.parent / FILES if not directory.is_mount() else directory / f".{FILES}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


# ---------------------------------------------------------------- cold reading
def scan_topic(bootstrap: str, topic: str, directory: Path, stop: Event) -> None:
    """A consumer reads a topic from its start repeatedly, with a cold page cache."""
    batch_bytes = len(batch(1, COLD_BATCH))
    with contextlib.closing(Peer(bootstrap)) as peer:
        offset = 0
        evict(logs_of(directory))
        while not stop.is_set():
            peer.send(fetch_frame(topic, offset, 8 * MIB, 0))
            batches = peer.discard() // batch_bytes
            offset += batches
            if not batches:
                evict(logs_of(directory))
                offset = 0


def scan_files(directory: Path, stop: Event) -> None:
    """Another program reads the same files, with a cold page cache."""
    buffer = bytearray(MIB)
    while not stop.is_set():
        evict(logs_of(directory))
        for path in logs_of(directory):
            with path.open("rb", 0) as file:
                while not stop.is_set() and file.readinto(buffer):
                    pass


# ---------------------------------------------------------------- syncing
def produce_synced(bootstrap: str, topic: str, stop: Event) -> None:
    """Some producers require every record on disk before its acknowledgement."""
    request = produce_frame(topic, batch(1, 1024))
    _run_threads(*[partial(_produce, bootstrap, request, stop)] * SYNCING)


def write_synced(directory: Path, stop: Event) -> None:
    """Another program writes as much and syncs as often."""
    block = batch(1, 1024)
    with own_folder(directory) as folder, (folder / "synced").open("wb", 0) as file:
        while not stop.is_set():  # one thread: a broker groups waiting writes
            file.write(block)
            os.fdatasync(file.fileno())


def _produce(bootstrap: str, request: bytes, stop: Event, pause_s: float = 0.0) -> None:
    with contextlib.closing(Peer(bootstrap)) as peer:
        while not stop.is_set():
            peer.call(request)
            if pause_s:
                time.sleep(pause_s)


def _run_threads(*works: Callable[[], None]) -> None:
    threads = [Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---------------------------------------------------------------- deleting
def delete_topic_later(bootstrap: str, topic: str, stop: Event) -> None:
    stop.wait(1)
    delete_topic(bootstrap, topic)
    stop.wait()


def delete_files(directory: Path, stop: Event) -> None:
    """Another program removes files of the same size."""
    stop.wait(1)
    for path in logs_of(directory):
        path.unlink()
    directory.rmdir()
    stop.wait()


# ---------------------------------------------------------------- many partitions
def create_partitions(bootstrap: str, partitions: int, stop: Event, pause_s: float = 1.0) -> None:
    """Topics with this number of partitions are created and deleted."""
    with RawClient(bootstrap, _PATIENCE_S) as client:
        stop.wait(0.5)
        while not stop.is_set():
            name = f"many-{time.monotonic_ns()}"
            create(client, name, partitions=partitions)
            stop.wait(pause_s)
            delete_topic(bootstrap, name)
            stop.wait(pause_s)


def create_directories(directory: Path, partitions: int, stop: Event) -> None:
    """Another program creates and removes such directories."""
    stop.wait(0.5)
    while not stop.is_set():
        with own_folder(directory) as folder:
            for number in range(partitions):
                path = folder / f"many-{number}"
                path.mkdir()
                (path / "partition.metadata").write_bytes(b"version: 0\n")
            stop.wait(1)
        stop.wait(1)


# ---------------------------------------------------------------- a slow directory
def use_slow_directory(bootstrap: str, busy: str, sleepy: str, stop: Event) -> None:
    """Uses topics in a slow directory in every way: appends and rolls, writes after a pause, commits, creates, deletes."""
    large, small = produce_frame(busy, batch(1, SLOW_BATCH)), produce_frame(sleepy, batch(1, 100))
    _run_threads(
        *[partial(_produce, bootstrap, large, stop)] * 4,
        partial(_produce, bootstrap, small, stop, 1.0),
        partial(_commit, bootstrap, stop),
        partial(create_partitions, bootstrap, 4, stop, pause_s=0.5),
    )


def _commit(bootstrap: str, stop: Event) -> None:
    with RawClient(bootstrap, _PATIENCE_S) as client:
        while not stop.is_set():
            for number in range(8):
                partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
                topics = [{"name": "elsewhere", "partitions": [partition]}]
                request = message(OffsetCommitRequest, group_id=f"group-{number}", member_id="", topics=topics)
                client.ask(request, 5)
            stop.wait(0.2)


def write_slow_directory(directory: Path, stop: Event) -> None:
    """Another program writes in the slow directory, with as many threads."""
    block = batch(1, SLOW_BATCH)

    def append(path: Path) -> None:
        with path.open("wb", 0) as file:
            while not stop.is_set():
                file.write(block)

    with own_folder(directory) as folder:
        _run_threads(*(partial(append, folder / f"other-{number}") for number in range(7)))
