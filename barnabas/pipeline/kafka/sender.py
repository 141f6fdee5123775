"""Records sent to a topic by Spark's workers, each once, however often a task or the whole job is begun again.

RULES    1. The records of one partition of the source are one *line*: one task sends them, in the order of their offsets.
         2. A line is sent in transactions. Each carries, besides its records, how far the line is: the offset after its last
            record, committed for the job's group (KIP-98's consume-transform-produce). Records and place are one. Brokers
            forget a group's offsets after a week without a commit (`offsets.retention.minutes`).
         3. A line's transactional id is the group's name and the line's. Who begins it takes the id over, which ends the
            open transaction of whoever had it (a killed task, a lost worker) and keeps it from committing; only then it asks
            how far the line is, and goes on behind that.
         4. Timestamps, keys, headers, nulls among them, go as they are.
         5. The rate is kept by each line for itself: it gets an equal share of what the job may send.
         6. A place that nobody takes ends the task: librdkafka waits without end, whatever it is told (its issue 5456), where
            the group's coordinator went at the wrong moment. A task that is begun again goes on.
NOT HERE What is sent (`jobs/replay.py`, `jobs/dead_letters.py`). See docs/decisions/0041.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from barnabas.pipeline.kafka.call_timeout import within
from barnabas.pipeline.spark.py_files import ship, shipped_client

RECORDS_PER_TRANSACTION = 20_000
SECONDS_PER_TRANSACTION = 10.0
TRANSACTION_TIMEOUT_MS = 60_000
LIMIT_S = 60.0
SENT = "topic string, partition int, sent bigint, skipped bigint"


class Sending(NamedTuple):
    """What a task is told; it travels to the workers."""

    client: dict[str, Any]
    group: str
    rate: float | None = None
    """Records a second of one line."""
    place_topic: str | None = None
    """The topic under whose name a line's place is committed, where that is not the source's: it must be there."""


def send(records: DataFrame, sending: Sending, lines: int) -> DataFrame:
    """Send records (columns: topic, partition, offset; to_topic, to_partition, key, value, headers, ms).

    `topic`, `partition` and `offset` are where a record comes from. The answer says for each line how many were sent, and
    how many had been sent before.
    """
    ship(records.sparkSession)
    ordered = records.repartition(max(1, lines), "topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )

    def task(rows: Iterable[Any]) -> Iterator[tuple[str, int, int, int]]:
        for (topic, partition), line in itertools.groupby(rows, lambda row: (row.topic, row.partition)):
            sent, skipped = _Line(sending, topic, partition).send(line)
            yield topic, partition, sent, skipped

    sent: DataFrame = ordered.rdd.mapPartitions(task).toDF(SENT)
    return sent


class _Line:
    """One line, from taking over its id to its last transaction."""

    def __init__(self, sending: Sending, topic: str, partition: int) -> None:
        self._client = shipped_client()
        self._sending = sending
        self._name = f"{topic}-{partition}"
        self._place = (sending.place_topic or topic, partition)
        self._failures: list[str] = []
        settings = {**sending.client, "group.id": sending.group, "isolation.level": "read_committed"}
        self._reader = self._client.Consumer({**settings, "enable.auto.commit": False})
        self._producer = self._client.Producer(
            {
                **sending.client,
                "transactional.id": f"{sending.group}-{topic}-{partition}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 20,
                "compression.type": "lz4",
                "message.max.bytes": 1_000_000_000,  # the broker decides
            }
        )

    def send(self, rows: Iterable[Any]) -> tuple[int, int]:
        """Send what was not sent before; how many that were, and how many were left out."""
        try:
            self._producer.init_transactions(LIMIT_S)
            [held] = self._reader.committed([self._client.TopicPartition(*self._place)], timeout=LIMIT_S)
            fresh = itertools.dropwhile(self._skipping(held.offset), rows)
            return sum(self._transaction(part) for part in _portions(fresh, self._pace())), self._skipped
        finally:
            self._reader.close()

    def _skipping(self, until: int) -> Callable[[Any], bool]:
        self._skipped = 0

        def was_sent(row: Any) -> bool:
            before = bool(row.offset < until)
            self._skipped += before
            return before

        return was_sent

    def _pace(self) -> _Pace:
        return _Pace(self._sending.rate)

    def _transaction(self, rows: Iterable[Any]) -> int:
        self._producer.begin_transaction()
        count, last = 0, -1
        for row in rows:
            self._produce(row)
            count, last = count + 1, row.offset
        place = self._client.TopicPartition(*self._place, last + 1)
        within(2 * LIMIT_S, lambda: self._send_place(place), f"The broker did not take the place of {self._name}.")
        self._producer.commit_transaction(LIMIT_S)
        if self._failures:
            raise RuntimeError(self._failures[0])
        return count

    def _send_place(self, place: Any) -> None:
        self._producer.send_offsets_to_transaction([place], self._reader.consumer_group_metadata(), LIMIT_S)

    def _produce(self, row: Any) -> None:
        headers = None if row.headers is None else [(header["key"], _bytes(header["value"])) for header in row.headers]
        while True:
            try:
                self._producer.produce(
                    row.to_topic,
                    key=_bytes(row.key),
                    value=_bytes(row.value),
                    partition=row.to_partition,
                    timestamp=row.ms,
                    headers=headers,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(1.0)  # the client's queue is full: it empties while we wait
            else:
                self._producer.poll(0)
                return

    def _delivered(self, failure: Any, _message: Any) -> None:
        if failure is not None:
            self._failures.append(f"the broker refused a record: {failure.str()}")


class _Pace:
    """So many records a second; None is as fast as it goes."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._count = 0

    def step(self) -> None:
        """Wait until the next record may go."""
        self._count += 1
        if self._rate is not None:
            ahead = self._count / self._rate - (time.monotonic() - self._started)
            if ahead > 0:
                time.sleep(ahead)


def _portions(rows: Iterable[Any], pace: _Pace) -> Iterator[Iterator[Any]]:
    """Rows by transactions: so many, or so long."""
    rows = iter(rows)
    for first in rows:
        pace.step()
        yield itertools.chain([first], _rest(rows, pace))


def _rest(rows: Iterator[Any], pace: _Pace) -> Iterator[Any]:
    ends = time.monotonic() + SECONDS_PER_TRANSACTION
    for row in itertools.islice(rows, RECORDS_PER_TRANSACTION - 1):
        pace.step()
        yield row
        if time.monotonic() > ends:
            return


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
