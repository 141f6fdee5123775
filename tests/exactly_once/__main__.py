"""`make exactly-once`: both applications, each through COUNT kills, on Barnabas or, with --kafka, on Apache Kafka."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from barnabas import Broker
from tests.exactly_once import loop, word_count
from tests.support.kafka import ApacheKafka, why_no_kafka
from tests.support.storage_engine import use_engine_of

Application = Callable[[Path, loop.StartedBroker, int, int], Counter[str]]
APPLICATIONS: dict[str, Application] = {"loop": loop.run, "streams": word_count.run}


def play(application: Application, seed: int, count: int, *, with_kafka: bool) -> Counter[str]:
    """Runs one application on its own broker; after a failure its histories and logs are kept."""
    folder = Path(tempfile.mkdtemp(prefix="barnabas-exactly-once-"))
    broker = ApacheKafka(loop.SETTINGS) if with_kafka else Broker(settings=loop.SETTINGS)
    with broker:
        try:
            done = application(folder, broker, seed, count)
        except BaseException:
            shutil.copy(broker.log_path, folder / "broker.log")
            print(f"The histories and the logs are in {folder}.", file=sys.stderr)
            raise
    shutil.rmtree(folder)
    return done


def main() -> None:
    """Parses the options, runs the applications and prints their counts."""
    parser = argparse.ArgumentParser(prog="make exactly-once", description="Exactly-once semantics under kills.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", choices=APPLICATIONS)
    parser.add_argument("--kafka", action="store_true", help="against Apache Kafka")
    options = parser.parse_args()
    # SIGTERM, as timeout(1) sends it, ends the broker and the programs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"seed {options.seed}", flush=True)
    names = [options.only] if options.only else list(APPLICATIONS)
    if why_no_kafka() is not None and "streams" in names:
        print(f"without Kafka Streams: {why_no_kafka()}")
        names.remove("streams")
    for name in names:
        print(name, dict(play(APPLICATIONS[name], options.seed, options.count, with_kafka=options.kafka)), flush=True)


if __name__ == "__main__":
    use_engine_of()
    main()
