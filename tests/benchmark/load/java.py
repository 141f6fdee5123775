"""Load by Apache Kafka's performance tools, each in its own JVM."""

from __future__ import annotations

import re

from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.kafka import run_tool

_RATE = re.compile(r"^\d+ records sent, ([\d.]+) records/sec", re.MULTILINE)
_TIMEOUT_S = 300


def produce(broker: RunningBroker, topic: str, count: int, value_bytes: int) -> Outcome:
    """ProducerPerformance at full speed, acks=1, with the client's default batch size."""
    settings = ("--command-property", f"bootstrap.servers={broker.bootstrap}", "acks=1")
    sizes = ("--num-records", count, "--record-size", value_bytes, "--throughput", -1)
    with Meter(broker.pid) as meter:
        ran = run_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, *sizes, *settings, timeout_s=_TIMEOUT_S
        )
    output = _RATE.findall(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    assert output, ran.stdout
    return meter.records(float(output[-1]), count * value_bytes)


def consume(broker: RunningBroker, topic: str, count: int) -> Outcome:
    """ConsumerPerformance; the rate is of the fetching only, the CPU time of the whole group session, per byte sent."""
    options = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", count, "--hide-header")
    with Meter(broker.pid) as meter:
        ran = run_tool("org.apache.kafka.tools.ConsumerPerformance", *options, timeout_s=_TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr
    rate = float(ran.stdout.strip().splitlines()[-1].split(",")[-1])
    return meter.records(rate, meter.loopback_bytes)
