"""Shows librdkafka's reaction to a late ListOffsets response: `python -m tests.exactly_once.late_list_offsets [--kafka]`.

RULES    1. A member of a group without offsets asks for the earliest offsets. The response is delayed while a second member
            joins, reads some of the partitions, commits and leaves; the partitions are then the first member's again.
         2. The response is delivered. The program prints what the first member reads next, beside the committed offset.
NOT HERE An assertion: the broker is not at fault. How the programs of this package avoid it: docs/exactly-once.md.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack

from confluent_kafka import Consumer, Producer

from barnabas import Broker
from protocol.api import ApiKey
from tests.exactly_once.client import QUICK
from tests.exactly_once.loop import PARTITIONS, SETTINGS, SOURCE, make_topics
from tests.support.kafka import ApacheKafka
from tests.support.recording_proxy import WatchingProxy
from tests.support.waiting import until

RECORDS = 20


class HoldingProxy(WatchingProxy):
    """Delays ListOffsets responses, and everything behind them on their connection, until `may_answer` is set."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def _is_answered(self, api_key: int) -> None:
        if api_key == ApiKey.LIST_OFFSETS:
            self.is_asked.set()
            self.may_answer.wait()


class Member:
    """A member of the group, and the offsets that it has read, by partition."""

    def __init__(self, bootstrap: str) -> None:
        self.read: dict[int, list[int]] = {}
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "heartbeat.interval.ms": 300, **QUICK,
            }
        )  # fmt: skip
        self.consumer.subscribe([SOURCE])

    def poll(self) -> None:
        for message in self.consumer.consume(RECORDS, 0.05):
            if message.error() is None:
                self.read.setdefault(message.partition(), []).append(message.offset())

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    @property
    def has_read_all(self) -> bool:
        """Whether it has partitions and has read all their records."""
        return bool(self.partitions) and all(len(self.read.get(one, ())) == RECORDS for one in self.partitions)


def show(bootstrap: str, proxy: HoldingProxy) -> None:
    make_topics(bootstrap, {SOURCE: PARTITIONS})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(SOURCE, str(number), partition=number % PARTITIONS)
    producer.flush()
    first = Member(proxy.bootstrap)
    until(lambda: first.poll() or proxy.is_asked.is_set(), "the first member asks where the topic begins")
    second = Member(bootstrap)
    until(lambda: first.poll() or second.poll() or 0 < len(first.partitions) < PARTITIONS, "each member has some")
    until(lambda: second.poll() or second.has_read_all, "the second member reads all that it has")
    committed = second.consumer.commit(asynchronous=False)
    second.consumer.close()
    until(lambda: first.poll() or len(first.partitions) == PARTITIONS, "the first member has all partitions")
    proxy.may_answer.set()
    until(lambda: first.poll() or second.read.keys() <= first.read.keys(), "it reads what is committed once more")
    for partition in committed:
        print(
            f"partition {partition.partition}: committed {partition.offset}, then read {first.read.get(partition.partition)}"
        )


def main() -> None:
    """On Barnabas, or with --kafka on Apache Kafka."""
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka(SETTINGS) if "--kafka" in sys.argv else Broker(settings=SETTINGS))
        show(broker.bootstrap, stack.enter_context(HoldingProxy(broker.bootstrap)))


if __name__ == "__main__":
    main()
