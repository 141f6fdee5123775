"""`make kill-pipeline`: archives of each format, replays, tables and aggregates, killed so many times, here or on a cluster.

    python -m tests.pipeline.killing --count 100 [--seed N] [--cluster] [--only archive] [--seconds 100] [--steps 1]

A life ends after some kills, and each has a seed, which is printed: with `--seed` and `--only` it is the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from barnabas import Broker
from tests.pipeline.killing.archives import Archive, Decoded
from tests.pipeline.killing.lakes import DeltaArchive, IcebergArchive, Lake
from tests.pipeline.killing.life import LOCAL, KillableBroker, Life
from tests.pipeline.killing.replays import Replay, ReplayOfArchive
from tests.pipeline.killing.story import Story
from tests.pipeline.killing.tables import Aggregate, Table
from tests.pipeline.killing.warm import WarmDriver
from tests.support.kafka import ApacheKafka
from tests.support.spark_cluster import SparkCluster

STORIES: dict[str, type[Story]] = {
    story.name: story
    for story in (Archive, Replay, Table, Aggregate, Decoded, ReplayOfArchive, DeltaArchive, IcebergArchive)
}
KILLS_OF_A_LIFE = 8
SETTINGS = {"offsets.topic.num.partitions": 5, "transaction.state.log.num.partitions": 5}


class Run:
    """Lives on one broker, and perhaps one Spark cluster."""

    def __init__(
        self,
        folder: Path,
        broker: KillableBroker,
        cluster: SparkCluster | None,
        warm: WarmDriver | None,
        seconds: float,
    ) -> None:
        self._folder = folder
        self._broker = broker
        self._cluster = cluster
        self._warm = warm
        self._ends = time.monotonic() + seconds
        self.kills: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether nothing new is begun."""
        return time.monotonic() > self._ends

    def live(self, kind: type[Story], seed: int, kills: int) -> None:
        """A life with so many kills."""
        with self._life(kind, seed) as life:
            while sum(life.kills.values()) < kills and not (life.is_done or self.is_over):
                life.turn()
            life.finish()
            self._count(life)

    def live_by_steps(self, kind: type[Story], seed: int, first: int) -> None:
        """A life whose every run dies one step of its commit later than the one before, until one has no step left."""
        with self._life(kind, seed) as life:
            step = first
            while life.kills["step"] == step - first and not self.is_over:
                life.turn((), step)
                step += 1
            life.finish()
            print(f"{kind.name}: died before the steps {first} to {first + life.kills['step'] - 1}", flush=True)
            self._count(life)

    def _life(self, kind: type[Story], seed: int) -> Life:
        print(f"{kind.name}: seed {seed}", flush=True)
        return Life(kind, self._folder / f"{kind.name}-{seed}", self._broker, seed, self._cluster, self._warm)

    def _count(self, life: Life) -> None:
        self.kills += life.kills
        self.done += Counter(lives=1, runs=life.runs, records=life.records)


def main() -> None:
    """Kill so many times, print what was done."""
    parser = argparse.ArgumentParser(prog="make kill-pipeline", description="Jobs of the pipeline that are killed.")
    parser.add_argument("--count", type=int, default=100, help="so many kills")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", choices=STORIES, action="append")
    parser.add_argument("--cluster", action="store_true", help="on a master and two workers, which are killed too")
    parser.add_argument(
        "--steps", type=int, metavar="FIRST", help="kill before each step of the commit from this one on"
    )
    parser.add_argument(
        "--cold", action="store_true", help="kill drivers whole, Python and JVM: each start takes its time"
    )
    parser.add_argument("--kafka", action="store_true", help="with Apache Kafka as the broker")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    kinds = [STORIES[name] for name in options.only or STORIES]
    random.Random(options.seed).shuffle(kinds)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="killing-"))
        broker = stack.enter_context(
            ApacheKafka(SETTINGS) if options.kafka else Broker(settings=SETTINGS, start_timeout_s=300)
        )
        cluster = None
        if options.cluster:
            spark = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-cluster-")))
            cluster = stack.enter_context(SparkCluster(spark))
        words = LOCAL if cluster is None else cluster.submit_words
        formats = [kind.format for kind in kinds if issubclass(kind, Lake)]
        warm = None if options.cold else stack.enter_context(WarmDriver(words, formats))
        run = Run(folder, broker, cluster, warm, options.seconds)
        seed = options.seed
        while not run.is_over and sum(run.kills.values()) < options.count:
            kind = kinds[run.done["lives"] % len(kinds)]
            if options.steps is None or not kind.has_steps:
                run.live(kind, seed, min(KILLS_OF_A_LIFE, options.count))
            else:
                run.live_by_steps(kind, seed, options.steps)
            seed = secrets.randbits(32)
        folder.rmdir()
        print(f"kills {dict(run.kills)}, {dict(run.done)}", flush=True)


if __name__ == "__main__":
    main()
