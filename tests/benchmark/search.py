"""Look-ups in a large key index: make bench ARGS="search --records 100000000"

Writes records with distinct keys to one partition with `barnabas.index.keys=key`, waits until all are indexed and merged, and
looks random keys up: from Python (the private API), over HTTP, and with the command. Cold means that the page cache has
neither pages of the index nor of the log (`posix_fadvise`), while the files stay open. Batches have 500 records, uncompressed.

The exit code is 0 when the median of warm look-ups is at most 5 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

from barnabas.client.search import open_cluster, search
from barnabas.cluster import free_ports
from barnabas.embedded import Broker
from tests.benchmark.load.numbered_records import NumberedBatches, key_of
from tests.support.evicted_files import evict
from tests.support.loading import create, load
from tests.support.raw_client import RawClient

TOPIC = "indexed"
BATCH_RECORDS = 500
AIM_MS = 5.0
_POLL_S = 2.0
COLD_LOOKUPS = 100
COMMANDS = 5
MIB = 1 << 20


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--lookups", type=int, default=2000)
    parser.add_argument("--engine", default="segments")
    parser.add_argument("--data-dir", type=Path, help="kept; an index in it is measured without writing it again")
    options = parser.parse_args()
    port = free_ports(1)[0]
    settings = {
        "barnabas.log.storage.engine": options.engine,
        "barnabas.metrics.listener": f"HTTP://127.0.0.1:{port}",
        "log.retention.ms": -1,
    }
    with Broker(data_dir=options.data_dir, settings=settings, start_timeout_s=300) as broker:
        return _Measurement(broker, port, options.records).run(options.lookups)


class _Measurement:
    """One broker with one topic."""

    def __init__(self, broker: Broker, port: int, records: int) -> None:
        self._broker = broker
        self._url = f"http://127.0.0.1:{port}/search?topic={TOPIC}"
        self._records = records - records % BATCH_RECORDS
        self._cluster = open_cluster(broker.bootstrap)
        self._random = random.Random(1)

    def run(self, lookups: int) -> int:
        """Write, index, look up."""
        print("| | |\n|---|---|")
        if not self._files("*.keyindex"):
            self._write()
        self._wait_for_index()
        files = self._files("*.keyindex")
        size = sum(path.stat().st_size for path in files)
        largest = max(path.stat().st_size for path in files)
        _row("index files; MiB; MiB of the largest", f"{len(files)}; {size / MIB:.0f}; {largest / MIB:.0f}")
        warm = self._time(self._from_python, lookups)
        _row("warm look-up from Python, ms: p50, p99, max", _percentiles(warm))
        _row("warm look-up over HTTP, ms: p50, p99, max", _percentiles(self._time(self._over_http, lookups)))
        _row("a key that no record has, ms: p50, p99, max", _percentiles(self._time(self._absent, lookups)))
        cold = self._time(self._from_python, COLD_LOOKUPS, before=self._forget_pages)
        _row("cold look-up from Python, ms: p50, p99, max", _percentiles(cold))
        _row(
            "barnabas search, ms, with the start of the interpreter", _percentiles(self._time(self._command, COMMANDS))
        )
        _row("memory of the processes, MiB", ", ".join(f"{rss / MIB:.0f}" for rss in self._memory()))
        return 0 if statistics.median(warm) <= AIM_MS else 1

    # ------------------------------------------------------------ building
    def _write(self) -> None:
        begin = time.monotonic()
        with RawClient(self._broker.bootstrap, 300) as client:
            create(client, TOPIC, barnabas_index_keys="key")
            load(client, TOPIC, NumberedBatches(BATCH_RECORDS).upto(self._records))
        _row("records; seconds to write them", f"{self._records:,}; {time.monotonic() - begin:.0f}")

    def _wait_for_index(self) -> None:
        """Until all is indexed and no merge runs; what a helper process costs is counted in its CPU time."""
        begin, before = time.monotonic(), self._helper_cpu_s()
        names: list[str] = []
        while True:
            time.sleep(_POLL_S)
            (part,) = search(self._cluster, TOPIC, "key", b"none").partitions
            known, names = names, sorted(path.name for path in self._files("*.keyindex*"))
            is_merging = any(name.endswith(".new") for name in names)
            if part.to_offset == self._records and known == names and not is_merging:
                break
        seconds, cpu_s = time.monotonic() - begin, self._helper_cpu_s() - before
        _row("seconds until all is indexed and merged; CPU of the helpers since", f"{seconds:.0f}; {cpu_s:.0f}")

    def _helper_cpu_s(self) -> float:
        children = psutil.Process(self._broker.pid).children(recursive=True)
        return sum(sum(child.cpu_times()[:2]) for child in children)

    def _memory(self) -> list[int]:
        process = psutil.Process(self._broker.pid)
        return [one.memory_info().rss for one in (process, *process.children(recursive=True))]

    def _files(self, pattern: str) -> list[Path]:
        return list(Path(self._broker.data_dir).rglob(pattern))

    # ------------------------------------------------------------ look-ups
    def _time(self, look_up: Callable[[], None], count: int, before: Callable[[], None] | None = None) -> list[float]:
        """Milliseconds of each."""
        look_up()
        found = []
        for _ in range(count):
            if before is not None:
                before()
            begin = time.perf_counter()
            look_up()
            found.append((time.perf_counter() - begin) * 1000)
        return found

    def _number(self) -> int:
        return self._random.randrange(self._records)

    def _from_python(self) -> None:
        number = self._number()
        (record,) = search(self._cluster, TOPIC, "key", key_of(number)).records
        assert record.offset == number

    def _absent(self) -> None:
        assert search(self._cluster, TOPIC, "key", b"%d" % self._number()).records == []

    def _over_http(self) -> None:
        number = self._number()
        with urllib.request.urlopen(f"{self._url}&key={key_of(number).decode()}", timeout=30) as answer:
            assert [record["offset"] for record in json.load(answer)["records"]] == [number]

    def _command(self) -> None:
        number = self._number()
        command = [sys.executable, "-m", "barnabas", "search", "-b", self._broker.bootstrap, "-t", TOPIC]
        done = subprocess.run([*command, "-k", key_of(number).decode(), "--json"], capture_output=True, check=True)
        assert json.loads(done.stdout)["offset"] == number

    def _forget_pages(self) -> None:
        evict((*self._files("*.keyindex"), *self._files("*.log"), *self._files("*.index")))


def _row(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def _percentiles(milliseconds: list[float]) -> str:
    found = sorted(milliseconds)
    return f"{statistics.median(found):.2f}, {found[int(len(found) * 0.99)]:.2f}, {found[-1]:.2f}"


if __name__ == "__main__":
    sys.exit(main())
