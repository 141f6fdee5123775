"""docs/examples/retries.py: failed records come back after growing delays, and end as dead letters."""

from __future__ import annotations

import runpy
import time
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from barnabas import Broker
from tests.support.librdkafka import read_to_end

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "retries.py"
DELAYS_MS = (100, 300)


def test_a_failing_record_is_tried_again_after_each_delay_and_then_set_aside() -> None:
    example = runpy.run_path(str(EXAMPLE))
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as broker:
        example["create_topics"](broker.bootstrap)
        example["create_topics"](broker.bootstrap)  # they exist now
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"a bad one", key=b"1", headers=[("trace", b"7f3a")])
        producer.produce("orders", b"a good one", key=b"2")
        assert producer.flush(30) == 0
        deadline = time.monotonic() + 60

        def is_done() -> bool:
            assert time.monotonic() < deadline, "no dead letter within 60 s"
            return bool(read_to_end(broker.bootstrap, "orders-dead"))

        example["run"](broker.bootstrap, DELAYS_MS, is_done)
        (dead,) = read_to_end(broker.bootstrap, "orders-dead")
        first, *retries = [
            one for one in read_to_end(broker.bootstrap, "orders", "read_committed") if one.key() == b"1"
        ]
        assert (dead.key(), dead.value()) == (b"1", b"a bad one")
        assert dead.headers() == [("trace", b"7f3a"), ("attempt", b"3")]
        attempts = [dict(one.headers() or [])["attempt"] for one in retries]
        assert attempts == [b"1", b"2"]
        times = [one.timestamp()[1] for one in (first, *retries)]
        waited = [after - before for before, after in pairwise(times)]
        assert all(wait >= delay for wait, delay in zip(waited, DELAYS_MS, strict=True))


def test_a_failed_record_that_cannot_be_set_aside_is_not_committed() -> None:
    """The example ends, and its next start tries the record again: it is not lost."""
    example = runpy.run_path(str(EXAMPLE))
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as broker:
        example["create_topics"](broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"a bad one", key=b"1")
        assert producer.flush(30) == 0
        deadline = time.monotonic() + 60
        with pytest.raises(RuntimeError, match=r"orders-retry cannot be written: .*INVALID_RECORD"):
            example["run"](broker.bootstrap, (10**15,), lambda: time.monotonic() > deadline)  # a delay that is refused
        tried: list[bytes | None] = []

        def process(message: Message) -> None:
            tried.append(message.value())

        example["run"].__globals__["process"] = process
        example["run"](broker.bootstrap, DELAYS_MS, lambda: bool(tried) or time.monotonic() > deadline)
        assert tried == [b"a bad one"]
