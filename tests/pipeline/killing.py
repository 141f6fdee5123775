"""SIGKILL for an archiving job, at moments of all kinds; after each a stranger lists the folder, at the end all is there once.

    python -m tests.pipeline.killing --count 20 [--seed N] [--bootstrap HOST:PORT]

RULES    1. The driver is killed whole, Python and JVM, in the middle of whatever it does: while files are staged, between the
            commit and the moves, between rounds.
         2. After every kill the folder, read by Arrow without any manifest, holds no record twice and none that was not sent.
         3. The last run is not disturbed; then every record is there once, with its key, value and timestamp.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Producer

from barnabas import Broker
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.settings import BrokerSettings
from tests.support.waiting import until

RECORDS = 6_000
ROUND = 500
START_MS = 1_767_225_600_000
SOME_RUN_S = 240.0
MOMENTS = ("staging", "staged", "committed", "moved")


class Life:
    """One archive and what is done to it."""

    def __init__(self, bootstrap: str, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.bootstrap = bootstrap
        self.topic = f"killed-{secrets.token_hex(3)}"
        self.archive = folder / "archive"
        self.sent: dict[tuple[int, int], tuple[bytes, bytes, int]] = {}

    def fill(self) -> None:
        """Send the records, and remember them by partition and offset."""
        Brokers(BrokerSettings(bootstrap=self.bootstrap)).create_topic(self.topic, 3, 1, {"retention.ms": "-1"})
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def keep(failure: object, message: object) -> None:
            assert failure is None, failure
            place = (message.partition(), message.offset())  # type: ignore[attr-defined]
            self.sent[place] = (message.key(), message.value(), message.timestamp()[1])  # type: ignore[attr-defined]

        for number in range(RECORDS):
            moment = START_MS + number * 60_000
            producer.produce(
                self.topic, key=b"%d" % (number % 50), value=b"value %d" % number, timestamp=moment, on_delivery=keep
            )
            producer.poll(0)
        producer.flush()
        assert len(self.sent) == RECORDS

    @contextmanager
    def job(self) -> Iterator[subprocess.Popen[str]]:
        """The job as a process group of its own."""
        options = {
            "--bootstrap": self.bootstrap,
            "--topic": self.topic,
            "--into": str(self.archive),
            "--max-offsets-per-trigger": str(ROUND),
            "--compact-above": "3",
            "--master": "local[2]",
        }
        command = [sys.executable, "-m", "barnabas", "pipeline", "archive", "--json"]
        command += [part for pair in options.items() for part in pair]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill_once(self) -> str:
        """Start the job and kill it at some moment; which one it was."""
        moment = self.random.choice(MOMENTS)
        more = self.random.randrange(1, 4)
        before = self._count(moment)
        with self.job() as process:
            until(
                lambda: process.poll() is not None or self._count(moment) >= before + more,
                f"the job reached {moment}",
                SOME_RUN_S,
                0.001 + self.random.random() / 50,
            )
            is_over = process.poll() is not None
            if not is_over:
                os.killpg(process.pid, signal.SIGKILL)
        return f"{'after its end' if is_over else moment}, {self._count('committed')} entries"

    def finish(self) -> dict[str, object]:
        """Run it undisturbed; its report."""
        with self.job() as process:
            said, complaints = process.communicate(timeout=SOME_RUN_S)
        assert process.returncode == 0, complaints
        report: dict[str, object] = json.loads(said.splitlines()[-1])
        return report

    def listed(self) -> dict[tuple[int, int], tuple[bytes, bytes, int]]:
        """What a stranger finds (rule 2)."""
        found: dict[tuple[int, int], tuple[bytes, bytes, int]] = {}
        for path in sorted(self.archive.glob("topic=*/date=*/*.parquet")):
            for row in pq.ParquetFile(path).read().to_pylist():
                place = (row["partition"], row["offset"])
                assert place not in found, f"{place} is there twice"
                found[place] = (row["key"], row["value"], round(row["timestamp"].timestamp() * 1000))
        strangers = {place for place, record in found.items() if self.sent[place] != record}
        assert not strangers, f"{len(strangers)} records were never sent so"
        return found

    def _count(self, moment: str) -> int:
        own = self.archive / "_barnabas"
        look = {
            "staging": (own / "staging", "*"),
            "staged": (own / "staging", "*/topic=*/date=*/0*.parquet"),
            "committed": (own / "manifest", "*.json"),
            "moved": (self.archive, "topic=*/date=*/*.parquet"),
        }
        folder, pattern = look[moment]
        return sum(1 for _ in folder.glob(pattern)) if folder.exists() else 0


def play(count: int, seed: int, bootstrap: str | None) -> None:
    """One archive, killed so many times."""
    with tempfile.TemporaryDirectory(prefix="killing-") as folder, Broker() as broker:
        life = Life(bootstrap or broker.bootstrap, Path(folder), seed)
        life.fill()
        for number in range(count):
            moment = life.kill_once()
            print(f"kill {number + 1}: {moment}, {len(life.listed())} records listed", flush=True)
        report = life.finish()
        assert life.listed() == life.sent, "every record once"
        print(f"all {len(life.sent)} records are there once; the last run wrote {report['records']}", flush=True)


def main() -> None:
    """As a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--bootstrap")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    play(options.count, options.seed, options.bootstrap)


if __name__ == "__main__":
    main()
