"""What a node needs for each partition and each connection: make bench ARGS="sizing"

Memory is the resident set of the process, disk what the files occupy, as `du` counts. Each line is the difference to the line
before, for one partition or connection. The records are small, so that the page cache and batches in flight do not count.
"""

from __future__ import annotations

import argparse
import resource
from contextlib import ExitStack
from pathlib import Path

import psutil

import barnabas
from protocol.messages.metadata import ApiVersionsRequest
from tests.support.loading import append_one, create
from tests.support.raw_client import RawClient

KIB = 1024


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=2000)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with barnabas.Broker(start_timeout_s=300, stop_timeout_s=300) as broker, ExitStack() as stack:
        table = _Table(broker)
        admin = stack.enter_context(RawClient(broker.bootstrap, 300))
        create(admin, "sized", partitions=options.partitions)
        table.add("a partition without records", options.partitions)
        for partition in range(options.partitions):
            append_one(admin, "sized", partition, b"x")
        table.add("its first record", options.partitions)
        for _ in range(options.connections):
            client = stack.enter_context(RawClient(broker.bootstrap, 300))
            client.ask(ApiVersionsRequest(), 3)
        table.add("a connection", options.connections)
        broker.stop()
        broker.start()
        table.add("a partition after a restart", options.partitions, since_start=True)
    return 0


class _Table:
    def __init__(self, broker: barnabas.Broker) -> None:
        self._broker = broker
        self._first = self._last = self._measure()
        memory, disk, files = self._last
        print("| | memory, KiB | disk, KiB | open files |\n|---|---|---|---|")
        print(f"| an empty node | {memory / KIB:.0f} | {disk / KIB:.0f} | {files} |", flush=True)

    def _measure(self) -> tuple[int, int, int]:
        process = psutil.Process(self._broker.pid)
        disk = sum(path.lstat().st_blocks * 512 for path in Path(self._broker.data_dir).rglob("*"))
        return process.memory_info().rss, disk, process.num_fds()

    def add(self, what: str, count: int, *, since_start: bool = False) -> None:
        """A line: the growth since the last line, or since the empty node, for each of `count`."""
        base, self._last = self._first if since_start else self._last, self._measure()
        memory, disk, files = (now - before for now, before in zip(self._last, base, strict=True))
        print(f"| {what} | {memory / KIB / count:.1f} | {disk / KIB / count:.1f} | {files / count:.1f} |", flush=True)
