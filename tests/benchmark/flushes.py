"""What it costs to make one small append to each of many files durable: make bench ARGS="flushes"

One flush is measured at a time: every file gets one write of 512 bytes, which is not measured, then all files are flushed.
The flushes of all kinds alternate in every round; the figures are medians of the rounds. Decision 0058 is based on them.

WAYS      one by one (fdatasync), fdatasync in eight threads, io_submit of all (as the broker does), one commit
          (see `one_commit`), syncfs, and one file that gets the same bytes in one write (as a commit log would).
LAYOUTS   append: the file grows. reserved: it grows into blocks that fallocate has reserved beyond its end.
          preallocated: fallocate has also set its size. overwritten: its blocks contain zeros that are on disk, so that
          the writes change no metadata that fdatasync must store.
PRIORITY  As root the process has real-time priority. Otherwise the time includes how long it waits for a CPU after a flush:
          several milliseconds on a busy machine.
DEVICE    writes, KiB and cache flushes of the block device during a flush, of all programs (/sys/dev/block/*/stat).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from storage.io.aio_fsync import CAPACITY, SyncQueue
from tests.benchmark.load.meter import device_counters
from tests.benchmark.report.publish import FOLDER
from tests.benchmark.report.rows import machine
from tests.benchmark.report.terminal import show_progress

COUNTS = (1, 2, 10, 100, 1000)
ROUNDS, QUICK_ROUNDS = 30, 5
APPEND_BYTES = 512
THREADS = 8
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_START_WRITEBACK, _WAIT_FOR_WRITEBACK = 2, 5  # SYNC_FILE_RANGE_WRITE; WAIT_BEFORE | WAIT_AFTER
_LIBC = ctypes.CDLL(None, use_errno=True)


class Sample(NamedTuple):
    """One flush, and what the device did during it."""

    ms: float
    writes: float
    kib: float
    flushes: float


Flush = Callable[[Sequence[int]], None]


# ------------------------------------------------------------ ways to flush
def one_by_one(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.fdatasync(descriptor)


def sync_file_system(descriptors: Sequence[int]) -> None:
    if _LIBC.syncfs(descriptors[0]):
        raise OSError(ctypes.get_errno(), "syncfs")


def one_commit(descriptors: Sequence[int]) -> None:
    """Writes the data of all files back, then flushes one of them: one journal commit and one cache flush for all.

    Not safe in general: no interface promises that the commit for one file contains the earlier changes of all files.
    """
    for flags in (_START_WRITEBACK, _WAIT_FOR_WRITEBACK):
        for descriptor in descriptors:
            if _LIBC.sync_file_range(descriptor, ctypes.c_long(0), ctypes.c_long(0), flags):
                raise OSError(ctypes.get_errno(), "sync_file_range")
    os.fdatasync(descriptors[-1])


def in_threads(pool: ThreadPoolExecutor) -> Flush:
    def flush(descriptors: Sequence[int]) -> None:
        parts = [descriptors[index::THREADS] for index in range(min(THREADS, len(descriptors)))]
        list(pool.map(one_by_one, parts))

    return flush


def in_kernel(queue: SyncQueue) -> Flush:
    def flush(descriptors: Sequence[int]) -> None:
        for first in range(0, len(descriptors), CAPACITY):
            assert queue.submit(descriptors[first : first + CAPACITY]), "io_submit accepted nothing"
            assert not any(queue.wait()), "a file was not synced"

    return flush


@contextlib.contextmanager
def ways() -> Iterator[dict[str, Flush]]:
    """The ways to flush several files, by name; io_submit only where the kernel supports it."""
    with ThreadPoolExecutor(THREADS) as pool, contextlib.ExitStack() as held:
        made = {"one by one": one_by_one, f"{THREADS} threads": in_threads(pool)}
        if (queue := SyncQueue.open()) is not None:
            held.callback(queue.close)
            made["io_submit"] = in_kernel(queue)
        yield {**made, "one commit": one_commit, "syncfs": sync_file_system}


# ------------------------------------------------------------ layouts of a file
def _leave_empty(descriptor: int, size: int) -> None:
    assert os.fstat(descriptor).st_size == 0 < size


def _reserve(descriptor: int, size: int) -> None:
    if _LIBC.fallocate(descriptor, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), "fallocate")


def _preallocate(descriptor: int, size: int) -> None:
    os.posix_fallocate(descriptor, 0, size)


def _fill(descriptor: int, size: int) -> None:
    os.pwrite(descriptor, bytes(size), 0)


LAYOUTS = {"append": _leave_empty, "reserved": _reserve, "preallocated": _preallocate, "overwritten": _fill}


class Files:
    """Files of one layout that get a number of appends of `size` bytes each."""

    def __init__(self, folder: Path, layout: str, count: int, size: int, appends: int) -> None:
        folder.mkdir()
        self._data = b"x" * size
        self._position = 0
        self.descriptors = [os.open(folder / f"{index}.log", os.O_RDWR | os.O_CREAT) for index in range(count)]
        for descriptor in self.descriptors:
            LAYOUTS[layout](descriptor, size * appends)
        sync_file_system(self.descriptors)

    def append(self) -> Sequence[int]:
        """Appends to each file; returns the descriptors."""
        for descriptor in self.descriptors:
            os.pwrite(descriptor, self._data, self._position)
        self._position += len(self._data)
        return self.descriptors

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


# ------------------------------------------------------------ measurement
def measured(folder: Path, flush: Flush, descriptors: Sequence[int]) -> Sample:
    before = device_counters(folder)
    started = time.perf_counter()
    flush(descriptors)
    ms = (time.perf_counter() - started) * 1e3
    writes, sectors, flushes = (now - then for now, then in zip(device_counters(folder), before, strict=True))
    return Sample(ms, writes, sectors / 2, flushes)


class Run:
    """All samples, by layout, number of files, and way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.samples: dict[str, list[Sample]] = {}

    def measure(self, counts: Sequence[int], rounds: int) -> None:
        """The layouts and numbers of files in turn; in each all ways alternate."""
        with ways() as flushes:
            for count in counts:
                for layout in LAYOUTS:
                    show_progress(f"{count:,} files, {layout}")
                    self._measure_files(layout, count, flushes, rounds)

    def _measure_files(self, layout: str, count: int, flushes: dict[str, Flush], rounds: int) -> None:
        folder = self._folder / f"{layout}-{count}"
        files = Files(folder, layout, count, APPEND_BYTES, (rounds + 1) * len(flushes))
        single = Files(folder / "one", layout, 1, APPEND_BYTES * count, rounds + 1)
        kinds = [(way, files, flush) for way, flush in flushes.items()]
        for turn in range(rounds + 1):
            for way, written, flush in [*kinds, ("one file", single, one_by_one)]:
                sample = measured(self._folder, flush, written.append())
                if turn:
                    self.samples.setdefault(f"{layout}, {count:,} files, {way}", []).append(sample)
        files.close()
        single.close()

    def table(self) -> str:
        """Medians in Markdown."""
        lines = ["| flush | ms | quartiles | device writes | KiB | cache flushes |", "|---|---:|---:|---:|---:|---:|"]
        for name, samples in self.samples.items():
            ms, writes, kib, flushes = (statistics.median(column) for column in zip(*samples, strict=True))
            lower, _, upper = statistics.quantiles([sample.ms for sample in samples], n=4, method="inclusive")
            lines.append(
                f"| {name} | {ms:.2f} | {lower:.2f} to {upper:.2f} | {writes:.0f} | {kib:.0f} | {flushes:.0f} |"
            )
        return "\n".join(lines)


def take_priority() -> bool:
    """Whether this process has real-time priority now."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    except PermissionError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser("flushes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"number of rounds; default: {ROUNDS}")
    parser.add_argument("--files", type=int, action="append", metavar="N", help=f"default: {COUNTS}")
    parser.add_argument("--directory", type=Path, default=FOLDER, help="on the file system to measure")
    wanted = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    wanted.directory.mkdir(parents=True, exist_ok=True)
    has_priority = take_priority()
    with tempfile.TemporaryDirectory(dir=wanted.directory) as folder:
        run = Run(Path(folder))
        run.measure(wanted.files or COUNTS, wanted.rounds or (QUICK_ROUNDS if wanted.quick else ROUNDS))
    show_progress("")
    path = FOLDER / "flushes.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"machine": machine(), "has_priority": has_priority, "samples": run.samples}, indent=1) + "\n"
    )
    print(run.table())
    print(f"\nreal-time priority: {'yes' if has_priority else 'no'}; every sample: {path}")
    return 0
