"""Runs a benchmark: python -m tests.benchmark [NAME] [OPTION]...

A benchmark is a module here with a `main() -> int` that returns 0 if all aims were reached.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module

BENCHMARKS = {
    "broker": "one node compared with Apache Kafka; the default",
    "stalls": "latencies of paced producers while the broker's disk is busy, compared with Apache Kafka",
    "partitions": "restarts and memory with 1,000 and 5,000 partitions, compared with Apache Kafka",
    "many": "20,000 partitions in one log directory, step by step, with a stock client",
    "sizing": "memory, disk and open files for each partition and connection",
    "durable": "records synced before they are acknowledged, over 1 to 1,000 partitions, compared with Apache Kafka",
    "engines": "both storage engines over 1 to 10,000 partitions, compared with Apache Kafka",
    "flushes": "one small append to each of 1 to 1,000 files made durable: the file system only",
    "onefile": "one log file for all partitions: syncs beside a bulk producer, reads of hot records; the file system only",
    "coordinators": "transactions and groups, compared with Apache Kafka",
    "delivery": "delayed delivery: how late records are, many due at once, many pending",
    "search": "look-ups in a large key index",
    "tls": "records over TLS, compared with Apache Kafka",
    "cluster": "three nodes compared with three of Apache Kafka: start, replication, fail-over",
    "cores": "several nodes on one host, one per core, and what a node costs without load",
    "segments": "the reader of segment files only",
    "spark": "Spark's source, sink and segment source, compared with Apache Kafka",
    "again": "the tables and plots of earlier runs, from their JSON",
    "codec": "decoding and encoding, compared with kio and kafka-python",
    "batches": "the cost of checking a produced batch",
}
DEFAULT = "broker"


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["help"], ["--help"], ["-h"]):
        print("\n".join(f"{name:14}{what}" for name, what in BENCHMARKS.items()))
        print(f"\nOPTIONs of a benchmark: NAME --help. Without a NAME they are those of {DEFAULT}.")
        return 0
    if not arguments or arguments[0].startswith("-"):
        arguments = [DEFAULT, *arguments]
    name, *options = arguments
    if name not in BENCHMARKS:
        print(f"There is no benchmark {name}: choose from {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    # SIGTERM, as sent by timeout(1), stops the brokers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.argv[1:] = options
    outcome: int = import_module(f"tests.benchmark.{name}").main()
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
