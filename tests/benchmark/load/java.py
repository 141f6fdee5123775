"""Load through the performance tools of Apache Kafka, each in a JVM of its own."""

from __future__ import annotations

import re

from tests.benchmark.load.meter import Meter
from tests.support.kafka import run_tool

_RATE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)
_TIMEOUT_S = 300


def produce(bootstrap: str, pid: int, topic: str, count: int, value_bytes: int) -> dict[str, float]:
    """ProducerPerformance as fast as it goes, acks=1, with the client's own batch size."""
    settings = ("--command-property", f"bootstrap.servers={bootstrap}", "acks=1")
    sizes = ("--num-records", count, "--record-size", value_bytes, "--throughput", -1)
    with Meter(pid) as meter:
        ran = run_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, *sizes, *settings, timeout_s=_TIMEOUT_S
        )
    said = _RATE.findall(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    assert said, ran.stdout
    return _figures(float(said[-1]), meter, count * value_bytes)


def consume(bootstrap: str, pid: int, topic: str, count: int, value_bytes: int) -> dict[str, float]:
    """ConsumerPerformance; the rate is of the fetching alone, the processor time of the whole group session."""
    options = ("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", count, "--hide-header")
    with Meter(pid) as meter:
        ran = run_tool("org.apache.kafka.tools.ConsumerPerformance", *options, timeout_s=_TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr
    rate = float(ran.stdout.strip().splitlines()[-1].split(",")[-1])
    return _figures(rate, meter, count * value_bytes)


def _figures(rate: float, meter: Meter, payload_bytes: int) -> dict[str, float]:
    return {"records/s": rate, "CPU s/GiB": meter.throughput(payload_bytes)["CPU s/GiB"]}
