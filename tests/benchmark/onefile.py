"""What one log file for all partitions costs, without a broker: make bench ARGS="onefile"

SYNCS     A round appends small batches and syncs them, one round after another, while a bulk producer that waits for no sync
          writes at a given rate. Its bytes go to the same file, or to a second file of the same file system. `paced` starts the
          writeback of each megabyte at once (sync_file_range), so that the next sync finds little left.
READS     1 MiB of one partition is sent to a socket. In a segment its batches touch; in a shared log they alternate with 99
          batches of other partitions. The reader sends regions with sendfile, reads each region, or reads spans with
          everything between and sends views of them. All files are in the page cache.
FIGURES   Rounds per second and milliseconds of a sync; CPU seconds per GiB of the sending process;
          medians of alternating rounds.
Decision 0092 is based on them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from tests.benchmark.report.publish import FOLDER
from tests.benchmark.report.rows import machine
from tests.benchmark.report.terminal import show_progress

ROUNDS, QUICK_ROUNDS = 7, 3
SECONDS = 2.0
"""Of one sample of syncs."""
BULK_MB_S = (0, 50, 150)
BULK_BYTES = 1 << 20
ROUND_BYTES = 10 * 1024
NEIGHBOURS = 100
BATCH_BYTES = (1 << 10, 4 << 10, 16 << 10, 64 << 10)
RESPONSE_BYTES = 1 << 20
RESPONSES = 64
SPAN_BYTES = 256 << 10
FILE_BYTES = 128 << 20
_START_WRITEBACK = 2  # SYNC_FILE_RANGE_WRITE
_LIBC = ctypes.CDLL(None, use_errno=True)

Samples = dict[str, list[dict[str, float]]]


# ------------------------------------------------------------ syncs beside a bulk producer
class Bulk:
    """Writes megabytes to the end of a file, at a rate, until it is closed; `lock` is held during a write."""

    def __init__(self, descriptor: int, mb_per_s: int, lock: threading.Lock, *, is_paced: bool) -> None:
        self._descriptor = descriptor
        self._interval_s = BULK_BYTES / (mb_per_s * 1e6) if mb_per_s else 0.0
        self._lock = lock
        self._is_paced = is_paced
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def __enter__(self) -> Self:
        if self._interval_s:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._interval_s:
            self._thread.join()

    def _run(self) -> None:
        data = os.urandom(BULK_BYTES)
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval_s, time.monotonic() - 1)
            with self._lock:
                position = os.lseek(self._descriptor, 0, os.SEEK_END)
                os.write(self._descriptor, data)
            self.written += len(data)
            if self._is_paced:
                start, count = ctypes.c_long(position), ctypes.c_long(len(data))
                _LIBC.sync_file_range(self._descriptor, start, count, _START_WRITEBACK)


def synced_rounds(folder: Path, mb_per_s: int, *, is_shared: bool, is_paced: bool) -> dict[str, float]:
    """One sample: rounds of appends and syncs for SECONDS beside a bulk producer."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    small = os.open(folder / "small", flags)
    bulk = small if is_shared else os.open(folder / "bulk", flags)
    lock = threading.Lock()
    data = os.urandom(ROUND_BYTES)
    times = []
    with Bulk(bulk, mb_per_s, lock, is_paced=is_paced) as producer:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            with lock:
                os.write(small, data)
            started = time.perf_counter()
            os.fdatasync(small)
            times.append((time.perf_counter() - started) * 1e3)
    for descriptor in {small, bulk}:
        os.close(descriptor)
    for path in folder.iterdir():
        path.unlink()
    os.sync()
    return {
        "rounds/s": len(times) / SECONDS,
        "p50 ms": statistics.median(times),
        "p99 ms": sorted(times)[int(len(times) * 0.99)],
        "bulk MB/s": producer.written / 1e6 / SECONDS,
    }


def measure_syncs(folder: Path, rounds: int) -> Samples:
    kinds = [
        (f"bulk {rate} MB/s, {place}", rate, place) for rate in BULK_MB_S for place in ("same file", "second file")
    ]
    kinds += [(f"bulk {rate} MB/s, {place}, paced", rate, place) for _, rate, place in kinds if rate]
    samples: Samples = {}
    for turn in range(rounds):
        for name, rate, place in kinds:
            show_progress(f"syncs, round {turn + 1}, {name}")
            is_shared, is_paced = place == "same file", name.endswith("paced")
            sample = synced_rounds(folder, rate, is_shared=is_shared, is_paced=is_paced)
            samples.setdefault(name, []).append(sample)
    return samples


# ------------------------------------------------------------ reads of hot records
class Reader(NamedTuple):
    """Sends regions of a file to a socket."""

    file: int
    connection: socket.socket

    def send_files(self, regions: Iterable[tuple[int, int]]) -> None:
        """One sendfile for each region."""
        for position, size in regions:
            end = position + size
            while position < end:
                position += os.sendfile(self.connection.fileno(), self.file, position, end - position)  # noqa: PLW2901

    def send_copies(self, regions: Iterable[tuple[int, int]]) -> None:
        """One pread for each region; up to SPAN_BYTES are sent together."""
        parts: list[bytes] = []
        pending = 0
        for position, size in regions:
            parts.append(os.pread(self.file, size, position))
            pending += size
            if pending >= SPAN_BYTES or len(parts) == 512:
                self._send(parts)
                parts, pending = [], 0
        self._send(parts)

    def send_views(self, regions: Iterable[tuple[int, int]]) -> None:
        """One preadv for a span of regions and everything between them, into one buffer; views of it are sent."""
        buffer = memoryview(bytearray(SPAN_BYTES))
        parts: list[memoryview] = []
        begin = end = 0
        for position, size in regions:
            if parts and position + size - begin > SPAN_BYTES:
                self._send_span(buffer, begin, end, parts)
                parts = []
            if not parts:
                begin = position
            end = position + size
            parts.append(buffer[position - begin : end - begin])
        self._send_span(buffer, begin, end, parts)

    def _send_span(self, buffer: memoryview, begin: int, end: int, parts: list[memoryview]) -> None:
        os.preadv(self.file, [buffer[: end - begin]], begin)
        self._send(parts)

    def _send(self, parts: list[bytes] | list[memoryview]) -> None:
        for first in range(0, len(parts), 512):
            chunk = parts[first : first + 512]
            size = sum(len(part) for part in chunk)
            sent = self.connection.sendmsg(chunk)
            if sent < size:
                self.connection.sendall(b"".join(chunk)[sent:])


def _discard(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(1 << 20, socket.MSG_TRUNC):
            pass


def sent(regions: list[list[tuple[int, int]]], send: Callable[[Iterable[tuple[int, int]]], None]) -> dict[str, float]:
    """One sample: RESPONSES responses; CPU seconds of this process per GiB."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for turn in range(RESPONSES):
        send(regions[turn % len(regions)])
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gib = RESPONSES * RESPONSE_BYTES / (1 << 30)
    return {"CPU s/GiB": cpu_s / gib, "MB/s": gib * 1073.741824 / (time.perf_counter() - started)}


def responses(batch_bytes: int, stride: int) -> list[list[tuple[int, int]]]:
    """The regions of as many responses as the file has; those of a stride of one touch and are one region."""
    if stride == 1:
        return [[(begin, RESPONSE_BYTES)] for begin in range(0, FILE_BYTES, RESPONSE_BYTES)]
    count = RESPONSE_BYTES // batch_bytes
    starts = range(0, FILE_BYTES - batch_bytes, batch_bytes * stride)
    all_of_one = [(start, batch_bytes) for start in starts]
    return [all_of_one[first : first + count] for first in range(0, len(all_of_one) - count + 1, count)]


def measure_reads(folder: Path, rounds: int) -> Samples:
    path = folder / "log"
    path.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
    samples: Samples = {}
    with socket.create_server(("127.0.0.1", 0)) as server, path.open("rb") as file:
        client = multiprocessing.get_context("fork").Process(target=_discard, args=(server.getsockname()[1],))
        client.start()
        connection, _ = server.accept()
        reader = Reader(file.fileno(), connection)
        for turn in range(rounds):
            show_progress(f"reads, round {turn + 1}")
            for name, sample in _read_round(reader):
                samples.setdefault(name, []).append(sample)
        connection.close()
        client.join()
    return samples


def _read_round(reader: Reader) -> Iterable[tuple[str, dict[str, float]]]:
    yield "batches that touch, sendfile", sent(responses(1024, 1), reader.send_files)
    for size in BATCH_BYTES:
        for neighbours in (NEIGHBOURS, 4):
            # The file ends before a whole response of one partition: the same regions are read again.
            regions = responses(size, neighbours) or [_repeated(size, neighbours)]
            kind = f"{size >> 10} KiB batches, every {neighbours}th"
            yield f"{kind}, sendfile each", sent(regions, reader.send_files)
            yield f"{kind}, pread each", sent(regions, reader.send_copies)
            if size * neighbours < SPAN_BYTES:
                yield f"{kind}, spans", sent(regions, reader.send_views)


def _repeated(batch_bytes: int, stride: int) -> list[tuple[int, int]]:
    slots = FILE_BYTES // (batch_bytes * stride)
    return [(index % slots * batch_bytes * stride, batch_bytes) for index in range(RESPONSE_BYTES // batch_bytes)]


# ------------------------------------------------------------ report
def table(samples: Samples) -> str:
    """Medians in Markdown."""
    figures = list(next(iter(samples.values()))[0])
    lines = [f"| | {' | '.join(figures)} |", "|---|" + "---:|" * len(figures)]
    for name, found in samples.items():
        cells = [f"{statistics.median(sample[figure] for sample in found):.3g}" for figure in figures]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser("onefile", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"number of rounds; default: {ROUNDS}")
    parser.add_argument("--directory", type=Path, default=FOLDER, help="on the file system to measure")
    wanted = parser.parse_args()
    rounds = wanted.rounds or (QUICK_ROUNDS if wanted.quick else ROUNDS)
    wanted.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wanted.directory) as folder:
        reads = measure_reads(Path(folder), rounds)
        (Path(folder) / "log").unlink()
        syncs = measure_syncs(Path(folder), rounds)
    show_progress("")
    path = FOLDER / "onefile.json"
    path.write_text(json.dumps({"machine": machine(), "reads": reads, "syncs": syncs}, indent=1) + "\n")
    print(f"{table(syncs)}\n\n{table(reads)}\n\nevery sample: {path}")
    return 0
