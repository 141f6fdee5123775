"""Run a benchmark: python -m tests.benchmark [NAME] [OPTION]...

A benchmark is a module here with a `main() -> int`; its answer is 0 when what was aimed at was reached.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module

BENCHMARKS = {
    "broker": "one node beside Apache Kafka, and what runs when no name is said",
    "stalls": "quiet producers while their broker is kept busy with disks, beside Apache Kafka",
    "partitions": "restarts and memory with 1,000 and 5,000 partitions, beside Apache Kafka",
    "durable": "records synced before they are acknowledged, over 1 to 1,000 partitions, beside Apache Kafka",
    "coordinators": "transactions and groups, beside Apache Kafka",
    "cluster": "three nodes beside three of Apache Kafka: start, replication, fail-over",
    "again": "the tables and plots of earlier runs once more, out of their JSON",
    "codec": "decoding and encoding beside kio and kafka-python",
    "batches": "what checking a produced batch costs",
}
DEFAULT = "broker"


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["help"], ["--help"], ["-h"]):
        print("\n".join(f"{name:12}{what}" for name, what in BENCHMARKS.items()))
        print(f"\nOPTIONs of one: NAME --help. Those of {DEFAULT} may stand alone.")
        return 0
    if not arguments or arguments[0].startswith("-"):
        arguments = [DEFAULT, *arguments]
    name, *options = arguments
    if name not in BENCHMARKS:
        print(f"There is no benchmark {name}: choose from {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    # Whoever is asked to end, as by timeout(1), ends the brokers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.argv[1:] = options
    outcome: int = import_module(f"tests.benchmark.{name}").main()
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
