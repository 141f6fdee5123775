"""Load on the disk: records that are synced before they are acknowledged, over many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from tests.benchmark.load import raw
from tests.benchmark.load.meter import DeviceMeter, Meter, Outcome
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.loading import create
from tests.support.raw_client import RawClient

_IN_FLIGHT_EACH = 4
_IN_FLIGHT = 2000
_VALUE = b"x" * 100
_RECORD_BYTES = 1 << 10
_TOTAL_BYTES = 32 << 20
_SETTLE_S = 2.0
_PATIENCE_S = 120.0


class _InFlightProducer:
    """A producer that sends to a partition again on each acknowledgement."""

    def __init__(self, broker: RunningBroker, topic: str, seconds: float) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "max.in.flight.requests.per.connection": 5,
                "queue.buffering.max.messages": 100_000,
            }
        )
        self._topic = topic
        self._begin = time.perf_counter() + _SETTLE_S
        self._end = self._begin + seconds
        self.acknowledged = 0
        self.waited_s: list[float] = []
        """Since the first two seconds."""
        self.failed: list[KafkaError] = []

    def run(self, partitions: int) -> None:
        """Until the time is over and everything is acknowledged."""
        for number in range(min(_IN_FLIGHT, partitions * _IN_FLIGHT_EACH)):
            self._send(number % partitions)
        while time.perf_counter() < self._end:
            self._producer.poll(0.05)
        left = self._producer.flush(_PATIENCE_S)
        assert not left, f"{left} records were not acknowledged"
        assert not self.failed, self.failed[0]

    def _send(self, partition: int) -> None:
        self._producer.produce(self._topic, _VALUE, partition=partition, on_delivery=self._delivery_callback(partition))

    def _delivery_callback(self, partition: int) -> Callable[[KafkaError | None, Message], None]:
        sent = time.perf_counter()

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            now = time.perf_counter()
            self.acknowledged += error is None
            if error is not None:
                self.failed.append(error)
            elif now > self._begin:
                self.waited_s.append(now - sent)
            if now < self._end and error is None:
                self._send(partition)

        return on_delivery


def record_to_each(broker: RunningBroker, topic: str, partitions: int, **settings: int) -> Outcome:
    """Requests with a record of 1 KiB for each partition of a new topic with these settings (`_` for `.`), five in flight."""
    with RawClient(broker.bootstrap, _PATIENCE_S) as admin:
        create(admin, topic, partitions=partitions, **settings)
        raw.touch(admin, topic, partitions)
    return raw.produce(broker, topic, _RECORD_BYTES, _TOTAL_BYTES, partitions, acks=-1)


def acknowledged(broker: RunningBroker, topic: str, partitions: int, seconds: float, **settings: int) -> Outcome:
    """Keeps records in flight for a new topic with these settings (`_` for `.`), whose partitions have one record each.

    Four records of 100 bytes in flight per partition, at most 2,000: acknowledged records and their latencies.

    The first two seconds do not count for the rate and the latencies; records in flight at the end do.
    """
    with RawClient(broker.bootstrap, _PATIENCE_S) as admin:
        create(admin, topic, partitions=partitions, **settings)
        raw.touch(admin, topic, partitions)
    time.sleep(_SETTLE_S)
    producer = _InFlightProducer(broker, topic, seconds)
    with DeviceMeter() as device, Meter(broker.pid) as meter:
        producer.run(partitions)
    count = len(producer.waited_s)
    waited_s = sorted(producer.waited_s)
    return Outcome(
        {
            "records/s": count / seconds,
            "p50 ms": waited_s[count // 2] * 1e3,
            "p99 ms": waited_s[count * 99 // 100] * 1e3,
            "CPU us": meter.cpu_s * 1e6 / producer.acknowledged,
            "device bytes": device.written_bytes / producer.acknowledged,
        }
    )
