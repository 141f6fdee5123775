"""`make kill-pipeline`: kills archives of each format, replays, tables and aggregates, here or on a cluster.

    python -m tests.pipeline.killing --count 100 [--seed N] [--cluster] [--only archive] [--seconds 100] [--steps 1]

Each run of a scenario ends after some kills and prints its seed; `--seed` with `--only` repeats it as the first run.
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
from tests.pipeline.killing.archives import Archive, DecodedArchive
from tests.pipeline.killing.kill_run import LOCAL, KillRun
from tests.pipeline.killing.lakes import DeltaArchive, IcebergArchive, TableArchive
from tests.pipeline.killing.replays import ArchiveReplay, Replay
from tests.pipeline.killing.scenario import Scenario
from tests.pipeline.killing.tables import Aggregate, Table
from tests.pipeline.killing.warm_driver import WarmDriver
from tests.support.kafka import ApacheKafka
from tests.support.spark_cluster import SparkCluster
from tests.support.storage_engine import use_engine_of

SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario
    for scenario in (Archive, Replay, Table, Aggregate, DecodedArchive, ArchiveReplay, DeltaArchive, IcebergArchive)
}
KILLS_PER_RUN = 8
SETTINGS = {"offsets.topic.num.partitions": 5, "transaction.state.log.num.partitions": 5}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make kill-pipeline", description="Jobs of the pipeline that are killed.")
    parser.add_argument("--count", type=int, default=100, help="the number of kills")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", choices=SCENARIOS, action="append")
    parser.add_argument("--cluster", action="store_true", help="on a master and two workers, which are killed as well")
    parser.add_argument(
        "--steps", type=int, metavar="FIRST", help="kill before each step of the commit from this one on"
    )
    parser.add_argument(
        "--cold", action="store_true", help="kill drivers whole, Python and JVM: each start takes its time"
    )
    parser.add_argument("--kafka", action="store_true", help="with Apache Kafka as the broker")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    kinds = [SCENARIOS[name] for name in options.only or SCENARIOS]
    random.Random(options.seed).shuffle(kinds)
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="killing-"))
        broker: Broker | ApacheKafka
        broker = ApacheKafka(SETTINGS) if options.kafka else Broker(settings=SETTINGS, start_timeout_s=300)
        stack.enter_context(broker)
        cluster = None
        if options.cluster:
            spark = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-cluster-")))
            cluster = stack.enter_context(SparkCluster(spark))
        words = LOCAL if cluster is None else cluster.submit_words
        formats = [kind.format for kind in kinds if issubclass(kind, TableArchive)]
        warm_driver = None if options.cold else stack.enter_context(WarmDriver(words, formats))
        ends = time.monotonic() + options.seconds
        kills: Counter[str] = Counter()
        done: Counter[str] = Counter()
        seed = options.seed
        while time.monotonic() < ends and kills.total() < options.count:
            kind = kinds[done["runs_with_kills"] % len(kinds)]
            print(f"{kind.name}: seed {seed}", flush=True)
            with KillRun(kind, folder / f"{kind.name}-{seed}", broker, seed, cluster, warm_driver) as kill_run:
                if options.steps is None or not kind.has_steps:
                    kill_run.run_with_kills(min(KILLS_PER_RUN, options.count), ends)
                else:
                    kill_run.run_by_steps(options.steps, ends)
                kill_run.finish()
            kills += kill_run.kills
            done += Counter(runs_with_kills=1, runs=kill_run.runs, records=kill_run.records)
            seed = secrets.randbits(32)
        folder.rmdir()
        print(f"kills {dict(kills)}, {dict(done)}", flush=True)


if __name__ == "__main__":
    use_engine_of()
    main()
