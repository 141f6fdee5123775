"""Runs all or some scenarios; the exit code tells whether the two brokers agree.

python -m tests.pipeline.spark_client [WORD ...] [--clusters] [--show]
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from barnabas.pipeline.session import start_session
from tests.pipeline.spark_client.runner import OURS, THEIRS, Failure, run_scenarios, select_scenarios, two_brokers
from tests.support.storage_engine import use_engine_of

WORDS = 12
CORES = 6
"""Continuous processing keeps one for each partition, of both brokers."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Spark's Kafka source and sink against Barnabas and Apache Kafka.")
    parser.add_argument("words", nargs="*", help="only scenarios whose name or module contains one of these words")
    parser.add_argument("--clusters", action="store_true", help="those of three nodes")
    parser.add_argument("--show", action="store_true", help="print equal results as well")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end ends the brokers, too
    scenarios = select_scenarios(options.words, clusters=options.clusters)
    differ = 0
    with tempfile.TemporaryDirectory(prefix="spark-client-", ignore_cleanup_errors=True) as folder:
        spark, _ = start_session("spark-client", Path(folder), Path(folder) / "spark.log", cores=CORES)
        try:
            with two_brokers(clusters=options.clusters) as brokers:
                for one in run_scenarios(spark, brokers, scenarios):
                    print(
                        f"{'same' if one.agree else 'DIFFER'}\t{one.name}\t{one.seconds[0]:.1f} s, {one.seconds[1]:.1f} s"
                    )
                    if options.show or not one.agree:
                        print(f"  {OURS}: {_shown(one.ours)}\n  {THEIRS}: {_shown(one.theirs)}")
                    sys.stdout.flush()
                    differ += not one.agree
        finally:
            spark.stop()
    print(f"{len(scenarios)} scenarios, {differ} differ")
    return 1 if differ else 0


def _shown(answer: object) -> str:
    if not isinstance(answer, Failure):
        return repr(answer)
    lines = [line for line in answer.trace.splitlines() if not line.lstrip().startswith("at ")]
    return "\n    ".join(lines[-WORDS:])


if __name__ == "__main__":
    use_engine_of()
    sys.exit(main())
