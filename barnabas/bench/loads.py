"""The loads: produce, consume, end-to-end latency, with librdkafka.

RULES    1. What was produced is counted at the cluster: the ends of the partitions after the load minus those before.
         2. The time of a produce is from the call until the cluster has acknowledged it. It is taken for one record in each
            SAMPLE_EVERY_S, since a callback for each record would measure Python.
         3. A load says how much CPU time this process took: near 100 %, the client was the limit, not the cluster.
         4. End-to-end latency is of one record at a time: from its produce until the consumer returns it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from barnabas.admin.client import Client
from barnabas.admin.offsets import LATEST, ranges
from barnabas.admin.offsets import list_offsets as offsets_of
from barnabas.client.errors import ClientError
from barnabas.client.topic_partition import TopicPartition

SAMPLE_EVERY_S = 0.001
PAYLOADS, PAYLOAD_BYTES = 1000, 64 << 20
"""Different values, so that compression does not see one record only; less of large ones."""
_LIMITS = (500, 8 << 20), (500_000, 512 << 20)
"""Records that are handed over at a time, and that wait in the producer, each with the bytes of their values."""
_FETCH = 10_000
_TIMEOUT_S = 60.0
_POLL_S = 0.5
"""How often a load looks for errors of its producer."""
_SETTLING_S = 0.3
_END_WAIT_MS = 10
"""How long a Fetch at the end of a partition waits, which would count as time of the load."""
_LARGEST_BY_DEFAULT, _RECORD_OVERHEAD = 1_000_000, 1024
"""Of librdkafka."""
Progress = Callable[[float, int], None]
"""Called with the share that is done and the number of records, several times a second."""


class Load(NamedTuple):
    """What to measure."""

    topic: str
    size: int
    """Bytes of a value."""
    duration_s: float
    rate: float | None
    """Records per second; None: as fast as possible."""
    acks: str
    compression: str


class Result(NamedTuple):
    """What was measured. Latencies are in ms; `by_second` are records in each whole second."""

    name: str
    records: int
    bytes: int
    seconds: float
    client_cpu: float
    """Share of one core that this process used."""
    latencies_ms: list[float]
    by_second: list[int]

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of values per second."""
        return self.bytes / self.seconds if self.seconds else 0.0


class _Clock:
    """Counts records by second, and reports progress."""

    def __init__(self, duration_s: float, progress: Progress) -> None:
        self.started = time.monotonic()
        self._cpu = time.process_time()
        self._duration_s = duration_s
        self._progress = progress
        self._next = self.started
        self._marks: list[tuple[float, int]] = []

    def tick(self, count: int) -> float:
        """Returns the time since the start in seconds."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.1
            self._marks.append((now - self.started, count))
            self._progress((now - self.started) / self._duration_s, count)
        return now - self.started

    def result(self, name: str, records: int, size: int, latencies_ms: list[float]) -> Result:
        """Returns the figures of a load that ends now."""
        seconds = time.monotonic() - self.started
        cpu = (time.process_time() - self._cpu) / seconds
        return Result(name, records, size, seconds, cpu, latencies_ms, _by_second([*self._marks, (seconds, records)]))


def _by_second(marks: list[tuple[float, int]]) -> list[int]:
    """The records of each whole second, from counts at some times."""
    found, before = [], 0
    for second in range(1, int(marks[-1][0]) + 1):
        count = next(count for at, count in marks if at >= second)
        found.append(count - before)
        before = count
    return found


def produce(
    client: Client, partitions: list[TopicPartition], settings: Mapping[str, Any], load: Load, progress: Progress
) -> Result:
    """Produces for the duration, and waits for the acknowledgements. Raises ClientError."""
    values = _values(load.size)
    before = {tp: listed.offset for tp, listed in offsets_of(client, dict.fromkeys(partitions, LATEST)).items()}
    latencies: list[float] = []
    with _producer(load, {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000, **settings}) as producer:
        clock = _Clock(load.duration_s, progress)
        sent = _fill(producer, load, values, clock, latencies)
        if left := producer.flush(_TIMEOUT_S):
            raise ClientError(f"The cluster has not acknowledged {left} of {sent} records after {_TIMEOUT_S:.0f} s.")
        result = clock.result("produce", sent, sent * load.size, latencies)
    records = _appended(client, before, sent)
    return result._replace(records=records, bytes=records * load.size)


@contextmanager
def _producer(load: Load, settings: Mapping[str, Any]) -> Iterator[Producer]:
    """A producer for a `with` block. The cluster decides how large a record may be, not the client.

    It is closed after an error too: with records in its queue it would create the topic that the caller deletes again.
    """
    largest = max(_LARGEST_BY_DEFAULT, load.size + _RECORD_OVERHEAD)
    own = {"acks": load.acks, "compression.type": load.compression, "message.max.bytes": largest}
    producer = Producer({**own, **settings})
    try:
        yield producer
    finally:
        producer.purge()
        with suppress(ClientError):  # of the records that are purged
            producer.close()


def _fill(producer: Producer, load: Load, values: list[bytes], clock: _Clock, latencies: list[float]) -> int:
    """Produces for the duration; returns the number of records."""
    sent, next_sample = 0, 0.0
    chunk, most_queued = (max(1, min(count, size // load.size)) for count, size in _LIMITS)
    while (elapsed := clock.tick(sent)) < load.duration_s:
        due = chunk if load.rate is None else min(chunk, int(load.rate * elapsed) + 1 - sent)
        if due <= 0 or len(producer) > most_queued:
            producer.poll(0.001)
            continue
        if elapsed >= next_sample:
            next_sample = elapsed + SAMPLE_EVERY_S
            _send(producer, load.topic, values[sent % len(values)], _timer(latencies))
            sent, due = sent + 1, due - 1
        for number in range(sent, sent + due):
            _send(producer, load.topic, values[number % len(values)])
        sent += due
        producer.poll(0)
    return sent


def _appended(client: Client, before: Mapping[TopicPartition, int], sent: int) -> int:
    """How many records the partitions got (rule 1). With acks=0 the last ones may still be on their way."""
    found = -1
    while True:
        after = offsets_of(client, dict.fromkeys(before, LATEST))
        records = sum(after[tp].offset - start for tp, start in before.items())
        if records >= sent or records == found:
            return records
        found = records
        time.sleep(_SETTLING_S)


def _send(producer: Producer, topic: str, value: bytes, on_delivery: Any = None) -> None:
    while True:
        try:
            producer.produce(topic, value, on_delivery=on_delivery)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def _check_delivery(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise ClientError(f"The cluster refused a record: {error.str()}.")


def _timer(latencies: list[float]) -> Callable[[KafkaError | None, Message], None]:
    begun = time.perf_counter()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        _check_delivery(error, message)
        latencies.append((time.perf_counter() - begun) * 1000)

    return on_delivery


def consume(
    client: Client, partitions: list[TopicPartition], settings: Mapping[str, Any], load: Load, progress: Progress
) -> Result:
    """Reads all records of the topic from the start, or for the duration. Raises ClientError.

    A topic may have fewer records than offsets: the client then says when it is at the end of a partition.
    """
    limits = ranges(client, partitions)
    total = sum(limit.end - limit.start for limit in limits.values())
    own = {"enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": _END_WAIT_MS}
    consumer = Consumer({"group.id": f"barnabas-bench-{os.getpid()}", **own, **settings})
    try:
        consumer.assign([ClientPartition(*tp, OFFSET_BEGINNING) for tp in partitions])
        clock = _Clock(load.duration_s, progress)
        count = size = 0
        unread = {tp.partition for tp in partitions}
        while count < total and unread and clock.tick(count) < load.duration_s:
            for message in consumer.consume(_FETCH, 0.1):
                if _is_end(message):
                    unread.discard(message.partition())
                    continue
                size += len(_value_of(message))
                count += 1
        return clock.result("consume", count, size, [])
    finally:
        consumer.close()


def latency(
    client: Client, partitions: list[TopicPartition], settings: Mapping[str, Any], load: Load, progress: Progress
) -> Result:
    """Sends one record at a time and waits for it at a consumer (rule 4). Raises ClientError."""
    del client
    tp = partitions[0]
    consumer = Consumer({"group.id": f"barnabas-bench-{os.getpid()}", "enable.auto.commit": False, **settings})
    latencies: list[float] = []
    try:
        with _producer(load, {"linger.ms": 0, **settings}) as producer:
            consumer.assign([ClientPartition(*tp, OFFSET_END)])
            _round_trip(producer, consumer, tp, b"", tries=20)
            clock = _Clock(load.duration_s, progress)
            while (elapsed := clock.tick(len(latencies))) < load.duration_s:
                if load.rate is not None and len(latencies) > load.rate * elapsed:
                    time.sleep(min(0.01, len(latencies) / load.rate - elapsed))
                    continue
                token = b"%d " % len(latencies)
                latencies.append(_round_trip(producer, consumer, tp, token.ljust(load.size, b".")) * 1000)
            return clock.result("latency", len(latencies), len(latencies) * load.size, latencies)
    finally:
        consumer.close()


def _round_trip(producer: Producer, consumer: Consumer, tp: TopicPartition, value: bytes, tries: int = 1) -> float:
    """Seconds until the consumer has the record. The first ones may be missed: the consumer is still looking for the end."""
    timeout_s = _TIMEOUT_S if tries == 1 else 1.0
    for _ in range(tries):
        begun = time.perf_counter()
        producer.produce(tp.topic, value, partition=tp.partition, on_delivery=_check_delivery)
        producer.poll(0)
        while (elapsed := time.perf_counter() - begun) < timeout_s:
            message = consumer.poll(min(_POLL_S, timeout_s - elapsed))
            if message is not None and _value_of(message) == value:
                elapsed = time.perf_counter() - begun
                producer.poll(0)
                return elapsed
            producer.poll(0)
    raise ClientError(f"A record did not arrive within {tries * timeout_s:.0f} s at {tp}.")


def _is_end(message: Message) -> bool:
    """Whether it is no record, but says that a partition has no more."""
    error = message.error()
    return error is not None and error.name() == "_PARTITION_EOF"


def _value_of(message: Message) -> bytes:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    return message.value() or b""


def _values(size: int) -> list[bytes]:
    """Values of hexadecimal digits: they compress to about half."""
    rng = random.Random(1)  # noqa: S311 - a load
    count = max(1, min(PAYLOADS, PAYLOAD_BYTES // size))
    return [rng.randbytes((size + 1) // 2).hex().encode()[:size] for _ in range(count)]
